"""bench/: each of its commands runs on a small case, so that what decisions rest on can be measured again."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from ready_kit import python

pytest.importorskip("psutil")
ROOT = Path(__file__).parent.parent

# A small case of each command; {new} is an empty folder. Where a choice of scenes is needed, it is the quickest one.
SMALLEST = {
    "bench": "--quick --rounds 1 --scenes chunk1_plain --peers solar_loader --folder {new} --out {new}/out",
    "bench.accelerators": "--quick --scenes cosmoflow --peers solar --folder {new} --out {new}/out",
    "bench.adopt": "--quick --scenes tiny --seconds 0.1 --rounds 1 --workers 0 --folder {new} --out {new}/out",
    "bench.arrays": "--samples 256 --rounds 1 --folder {new}",
    "bench.bound": "--seconds 0.2 --seed 1",
    "bench.buffer": "--quick --scenes chunk16_gzip --peers solar --folder {new} --out {new}/out",
    "bench.clips": "--frames 600 --seconds 0.1 --rounds 1 --delays 0 --who 'solar, buffer=0' solar --folder {new}",
    "bench.cluster": "--quick --ranks 2 --surrogates ptychonn --shares 0.5 --readers pinned solar --folder {new}"
    " --out {new}/out",
    "bench.codec": "--quick --out {new}/out turb64",
    "bench.costs": "--cells 2 {new}/table.js",
    "bench.decoders": "--seconds 0.01 text, 16 inflate",
    "bench.demo": "--samples 64 --epochs 1",
    "bench.device": "--device cpu --workers 0 --samples 64 --seconds 0.02 --folder {new}",
    "bench.device_decode": "--device cpu --passes 1 --share 0.01",
    "bench.device_training": "--device cpu --workers 0 --share 0.01 --seconds 0.05 --scenes PtychoNN --batch 2"
    " --rounds 1",
    "bench.dlio": "--scenes warm --folder {new} --out {new}/out",
    "bench.far": "--samples 64 --delays 0 --who 'solar, buffer=0' --folder {new}",
    "bench.gallery": "--quick --folder {new} --out {new}/out",
    "bench.gpu": "--quick --device cpu --steps decode --out {new}/out",
    "bench.handing": "--quick --folder {new}",
    "bench.steps": "--quick --folder {new}",
    "bench.judges": "--list",
    "bench.loader": "--quick --parts overhead --folder {new} --out {new}/out",
    "bench.lossy": "--quick --case flow --folder {new} --out {new}/out",
    "bench.markers": "--quick --out {new}/out",
    "bench.matrix": "--list",
    "bench.opening": "--chunks 1000 --files 10 --folder {new}",
    "bench.orders": "--what cost --samples 50000 --out {new}/out",
    "bench.pictures": "{new}",
    "bench.planning": "--samples 10000 --buffers 1 --ranks 2 --folder {new}",
    "bench.ranks": "--quick --samples 2048 --scenes alone --folder {new} --out {new}/out",
    "bench.ray_data": "--samples 64 --rounds 1 --folder {new}",
    "bench.reading": "--reads 5 --rounds 1 --files 10 --folder {new}",
    "bench.recipes": "--quick --scenes lightning_trainer --folder {new} --out {new}/out",
    "bench.report": "bench/results/timeline.jsonl bench/results/rates.jsonl",
    "bench.serve": "--quick --local --jobs 1 --ways own --folder {new} --out {new}/out",
    "bench.serve_page": "--seconds 1 {new}/page.html",
    "bench.serve_nodes": "--quick --hosts 2 --rates 1gbit --shares 0.25 --ways alone --folder {new} --out {new}/out",
    "bench.shapes": "--quick --scenes clips --peers solar --folder {new} --out {new}/out",
    "bench.shares": "--part 16 --shares 1.1 --epochs 1 --folder {new}",
    "bench.slowfs": "",
    "bench.threads": "--threads 2 --seconds 0.1 --files 4 --folder {new}",
    "bench.timeline": "--quick --samples 1024 --compute 1 --folder {new} --out {new}/out",
    "bench.training": "--quick --what steps --out {new}/out",
    "bench.training_part": "steps --size 32 --steps 1 --threads 1",
    "bench.zarr_epochs": "--samples 256 --rounds 1 --folder {new}",
    "bench.utilisation": "--quick --scenes 'cosmoflow, warm' --peers solar --folder {new} --out {new}/out",
}
# Those that only another command begins, which one does, and how it names them.
BEGUN_BY = {
    "bench.codec_threads": ("codec.py", "codec_threads"),
    "bench.far_server": ("far.py", "bench.far_server"),
    "bench.parts": ("planning.py", "parts.measured"),
    "bench.serve_tensorsocket": ("serve.py", "bench.serve_tensorsocket"),
}
QUICK = ["bench.bound", "bench.judges", "bench.matrix", "bench.opening", "bench.pictures", "bench.report"]
LACKING = re.compile(r"skipped: |left out: |no slowed mount: |\bnot installed\b")


def commands() -> set[str]:
    """The modules of bench/ that can be run."""
    paths = [one for one in (ROOT / "bench").rglob("*.py") if 'if __name__ == "__main__"' in one.read_text()]
    names = (".".join(one.relative_to(ROOT).with_suffix("").parts) for one in paths)
    return {one.removesuffix(".__main__") for one in names}


def test_every_command_of_the_folder_has_a_small_case_here() -> None:
    assert commands() == {*SMALLEST, *BEGUN_BY}
    for beginner, word in BEGUN_BY.values():
        assert word in (ROOT / "bench" / beginner).read_text()
        assert f"bench.{Path(beginner).stem}" in SMALLEST


@pytest.mark.slow(but=QUICK)
@pytest.mark.parametrize("name", SMALLEST)
def test_a_command_of_the_folder_runs_on_a_small_case(name: str, tmp_path: Path) -> None:
    words = shlex.split(SMALLEST[name].format(new=tmp_path))
    kept = {path: path.read_bytes() for path in (ROOT / "bench" / "results").iterdir()}
    ran = subprocess.run(
        [*python(), "-m", name, *words], cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}, timeout=600,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = ran.stdout + ran.stderr
    if "Traceback" not in said and (found := LACKING.search(said)) and not (ran.returncode == 0 and "|" in ran.stdout):
        pytest.skip(said[found.start() :].strip().splitlines()[0])
    assert ran.returncode == 0, said
    assert "failed" not in said and ran.stdout.strip()
    assert kept == {path: path.read_bytes() for path in (ROOT / "bench" / "results").iterdir()}, "nothing is recorded"
