// What Python's fetchers of far files take and give.

#include "solar/far.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <span>
#include <tuple>
#include <vector>

#include "text.hpp"

namespace nb = nanobind;

namespace {

nb::tuple tuple_of(const solar::Identity& one) {
  return nb::make_tuple(one.nbytes, one.mtime_ns, one.inode, one.ctime_ns);
}

nb::object take_order() {
  std::optional<solar::Far::Order> order;
  {
    nb::gil_scoped_release released;
    order = solar::Far::get().take();
  }
  if (!order) return nb::none();
  return nb::make_tuple(order->number, solar::bind::text(order->url), order->offset, order->nbytes,
                        tuple_of(order->was));
}

void give(std::uint64_t number, nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig> bytes) {
  const solar::Bytes own = std::as_bytes(std::span(bytes.data(), bytes.size()));
  nb::gil_scoped_release released;
  solar::Far::get().give(number, own);
}

nb::tuple look(nb::str url) {
  const std::string name = solar::bind::bytes_of(url);
  solar::Identity now;
  {
    nb::gil_scoped_release released;
    now = solar::Far::get().look(name);
  }
  return tuple_of(now);
}

// Bytes of metadata, of what was looked at: kept for a while.
nb::bytes bytes_at(nb::str url, std::tuple<std::uint64_t, std::int64_t, std::uint64_t, std::int64_t> was,
               std::uint64_t offset, std::uint64_t nbytes) {
  const std::string name = solar::bind::bytes_of(url);
  const solar::Identity known{std::get<0>(was), std::get<1>(was), std::get<2>(was), std::get<3>(was)};
  if (offset > known.nbytes || nbytes > known.nbytes - offset) throw nb::value_error("bytes behind its end");
  std::vector<std::byte> bytes(nbytes);
  {
    nb::gil_scoped_release released;
    solar::Far::get().read_kept(name, known, offset, bytes);
  }
  return nb::bytes(bytes.data(), bytes.size());
}

void is(std::uint64_t number, std::uint64_t nbytes, std::int64_t mtime_ns, std::uint64_t inode, std::int64_t ctime_ns) {
  solar::Far::get().give(number, solar::Identity{nbytes, mtime_ns, inode, ctime_ns});
}

void refuse(std::uint64_t number, int code, nb::str why) {
  solar::Far::get().refuse(number, code, solar::bind::bytes_of(why));
}

}  // namespace

void bind_far(nb::module_& module) {
  using namespace nb::literals;
  module.def("far_look", &look, "url"_a);
  module.def("far_read", &bytes_at, "url"_a, "was"_a, "offset"_a, "nbytes"_a);
  module.def("far_take", &take_order);
  module.def("far_give", &give, "number"_a, "bytes"_a);
  module.def("far_is", &is, "number"_a, "nbytes"_a, "mtime_ns"_a, "inode"_a, "ctime_ns"_a);
  module.def("far_refuse", &refuse, "number"_a, "code"_a, "why"_a);
  module.def("far_begin", [](std::uint64_t most) { solar::Far::get().begin(most); }, "most_under_way"_a);
  module.def("far_end", [] { solar::Far::get().end(); });
  module.def("far_short_of_threads", [] { return solar::Far::get().short_of_threads(); });
  module.def("far_forget", [] { solar::Far::forget(); });
}
