# A Spack package for a repository of a site: packages/py_solar/package.py there, with the clone's address as `git`.
# tools/recipes carries its steps out where there is no Spack.

from spack.package import *  # noqa: F403
from spack_repo.builtin.build_systems.python import PythonPackage


class PySolar(PythonPackage):
    """A drop-in torch DataLoader for HDF5 that knows the whole shuffled future."""

    license("Apache-2.0")

    version("main", branch="main")
    version("0.1.0", tag="v0.1.0")

    variant("mpi", default=False, description="ranks by MPI, with Spack's own")

    depends_on("cxx", type="build")
    depends_on("cmake@3.26:", type="build")
    depends_on("ninja", type="build")
    depends_on("py-scikit-build-core@1.1:1", type="build")
    depends_on("py-nanobind@3.1:3", type="build")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-h5py@3.10:", type=("build", "run"))
    depends_on("py-torch@2.4:", type=("build", "run"))
    depends_on("py-zstandard@0.22:", type=("build", "run"))
    depends_on("py-mpi4py@4:", type=("build", "run"), when="+mpi")

    conflicts("platform=darwin", msg="solar reads by Linux's system calls")

    import_modules = ["solar", "solar.loader.loader"]

    def test_selftest(self):
        """small files of each kind are read as h5py and PyTorch read them"""
        python("-m", "solar.selftest")
