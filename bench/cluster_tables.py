"""Tables of records of python -m bench.cluster."""

from __future__ import annotations

def line(one):
    return f"{one['median']:,.0f}/s {one['first_batch']:.1f} {one['first_epoch']:.1f} {one['requests_a_sample']:.2f} {one['bytes_a_sample']/one['sample_nbytes']:.2f} {one['memory_grown']/2**20:.0f} MiB {[round(e['seconds'],1) for e in one['epochs_read']]}"
def cluster(found):
    return ""
