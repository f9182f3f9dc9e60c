"""Programs that the project's history taught: what CHANGELOG.md says was mended, as programs that would find it."""

from __future__ import annotations

from .drawn import HEAD, Program

# Of the global generator, and seeded as before where a loader is resumed.
RESUMED_BY_THE_GLOBAL_SEED = """
from solar import DataLoader
write('a.h5', x=np.arange(40))

def batches(loader):
    torch.manual_seed(3)
    return [batch.tolist() for batch in loader]

data = H5Dataset('a.h5', 'x')
sampler = lambda: WeightedRandomSampler([1 + i % 9 for i in range(40)], 50)
expected = batches(TorchLoader(stored('a.h5', 'x').tolist(), 4, sampler=sampler()))
for taken in (1, 5, 12):
    torch.manual_seed(3)
    first = DataLoader(data, 4, sampler=sampler())
    iterator = iter(first)
    had = [next(iterator).tolist() for _ in range(taken)]
    second = DataLoader(data, 4, sampler=sampler())
    second.load_state_dict(through_json(first.state_dict()))
    assert had + batches(second) == expected, taken
"""

PARTS_THAT_DIFFER_IN_A_TYPE = """
from torch.utils.data import ConcatDataset
write('a.h5', x=made((20, 3), 'f4', 0))
parts = lambda: ConcatDataset([H5Dataset('a.h5', Field('x', dtype=dtype)) for dtype in ('f4', 'f8')])
samples = [stored('a.h5', 'x')[i].astype(dtype) for dtype in ('f4', 'f8') for i in range(20)]
pair = Pair(parts, lambda epoch: samples, lambda data: dict(batch_size=4))
pair.epoch()
pair.end()
"""

SEVERAL_THREADS_ASK_ONE_ITERATOR = """
import threading
from solar import DataLoader
write('a.h5', x=np.arange(200))
for options in ({}, {'buffer': '8MiB'}, {'transform': twice}):
    data = H5Dataset('a.h5', 'x', **({'transform': options.pop('transform')} if 'transform' in options else {}))
    iterator, found = iter(DataLoader(data, 4, shuffle=True, **options)), []
    take = lambda: found.extend(value for one in iterator for value in one.tolist())
    threads = [threading.Thread(target=take) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(found) == sorted(np.arange(200) * (2 if data.transform else 1)), len(found)
"""

SAMPLES_OF_A_SUBCLASS = """
write('a.h5', x=made((20, 3), 'f4', 0))
class Two(H5Dataset):
    def __getitem__(self, i):
        one, other = super().__getitems__([i, (i + 1) % 20])
        return np.stack([one, other])
x = stored('a.h5', 'x')
samples = [np.stack([x[i], x[(i + 1) % 20]]) for i in range(20)]
pair = Pair(lambda: Two('a.h5', 'x'), lambda epoch: samples, lambda data: dict(batch_size=3, shuffle=True))
pair.epoch()
pair.resume(2)
pair.end()
"""

BATCHES_IN_ANY_ORDER = """
from solar import DataLoader
options = dict(num_workers=2, multiprocessing_context='fork', in_order=False)
for taken in (1, 3, 7):
    first = DataLoader(Slow(40), 4, **options)
    iterator = iter(first)
    had = [value for _ in range(taken) for value in next(iterator).tolist()]
    state = through_json(first.state_dict())
    del iterator
    second = DataLoader(Slow(40), 4, **options)
    second.load_state_dict(state)
    assert sorted(had + [value for batch in second for value in batch.tolist()]) == list(range(40)), taken
"""

NAMED: dict[str, Program | str] = {
    "closed by another thread while the loop waits": Program(acts=("closed_beside(0.02, *reads(delay=0.05))",) * 3),
    "workers: an epoch is left early": Program(
        order="replacement", workers=2, acts=("leave(2)", "epoch()", "leave(1)", "epoch()")
    ),
    "resumed by the global seed": HEAD + RESUMED_BY_THE_GLOBAL_SEED,
    "parts that differ in a type": HEAD + PARTS_THAT_DIFFER_IN_A_TYPE,
    "several threads ask one iterator": HEAD + SEVERAL_THREADS_ASK_ONE_ITERATOR,
    "samples of a subclass": HEAD + SAMPLES_OF_A_SUBCLASS,
    "batches in any order": HEAD + BATCHES_IN_ANY_ORDER,
    "replaced where all is in the buffer": Program(buffer="8MiB", acts=("epoch()", "changed('replaced', 'a.h5', 2)")),
    "no memory in reading threads": Program(
        stored="gzip", chunk=2, count=61, acts=("faulty(fault('memory', errno.ENOMEM, times=5))",) * 3
    ),
    "a run that memory has ended": Program(
        kind="varying", count=1, buffer=30, acts=("faulty(fault('memory', errno.ENOMEM, after=0, times=1))",)
    ),
    "left early beside a buffer that guesses": Program(
        count=61, order="shuffle", buffer=30, disk=True, acts=("leave(2)", "epoch()", "leave(1)", "epoch()", "epoch()")
    ),
    "unsigned samples of unequal length": Program(kind="ragged", dtype="u2", form="3", acts=("epoch()", "resume(2)")),
    "a file by its URL": Program(kind="web", order="shuffle", buffer="8MiB", acts=("epoch()", "resume(2)")),
    "begun in another process": Program(order="generator", elsewhere=(1, 2), acts=("epoch()",)),
}
