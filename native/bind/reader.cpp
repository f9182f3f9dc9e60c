// Source, Reader, count_names.

#include "solar/reader.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bound.hpp"
#include "filters.hpp"
#include "text.hpp"

namespace nb = nanobind;

namespace {

using solar::Backend;
using solar::bind::Array;
using solar::bind::BoundBoxes;
using solar::bind::BoundDecodedFile;
using solar::bind::BoundSource;
using solar::bind::BoundStage;
using solar::bind::bytes_of;
using solar::bind::counts_of;
using solar::bind::Filters;
using solar::bind::name_of;
using solar::bind::nanoseconds;
using solar::bind::native_filters;
using solar::bind::view;

using BoundForm = std::tuple<std::vector<std::uint64_t>, Filters, nb::bytes>;

solar::Form native_form(const BoundForm& bound, std::uint64_t itemsize, std::uint64_t decoded) {
  const auto& [chunk, filters, fill] = bound;
  solar::Form form;
  form.chunk = chunk;
  form.nbytes = decoded;
  const auto* begin = static_cast<const std::byte*>(fill.data());
  form.fill.assign(begin, begin + fill.size());
  if (filters.empty()) return form;
  std::uint64_t nbytes = itemsize;
  for (const std::uint64_t n : chunk) {
    if (__builtin_mul_overflow(nbytes, n, &nbytes))
      throw solar::Error(solar::Kind::layout, "a chunk of over 2^64 bytes");
  }
  form.pipeline = solar::Pipeline(native_filters(filters), itemsize, decoded == 0 ? nbytes : decoded);
  return form;
}

std::vector<solar::SourceFile> files_of(const nb::list& paths, const Array<std::uint64_t>& nbytes,
                                        const Array<std::int64_t>& mtime_ns, const Array<std::uint64_t>& inode,
                                        const Array<std::int64_t>& ctime_ns) {
  const bool known = inode.size() != 0;  // else all that is known is size and time
  if (nbytes.size() != paths.size() || mtime_ns.size() != paths.size() || inode.size() != ctime_ns.size() ||
      (known && inode.size() != paths.size())) {
    throw nb::value_error("file_nbytes and file_mtime_ns must be as long as paths, file_inode and file_ctime_ns too or empty");
  }
  std::vector<solar::SourceFile> files;
  files.reserve(paths.size());
  for (std::size_t i = 0; i < paths.size(); ++i) {
    solar::Identity was{view(nbytes)[i], view(mtime_ns)[i]};
    if (known) {
      was.inode = view(inode)[i];
      was.ctime_ns = view(ctime_ns)[i];
    }
    files.push_back({bytes_of(paths[i]), was});
  }
  return files;
}

void check_unchanged(const nb::list& paths, const Array<std::uint64_t>& nbytes, const Array<std::int64_t>& mtime_ns,
                     const Array<std::uint64_t>& inode, const Array<std::int64_t>& ctime_ns, bool gone,
                     unsigned threads) {
  const auto files = files_of(paths, nbytes, mtime_ns, inode, ctime_ns);
  nb::gil_scoped_release released;
  solar::check_unchanged(files, gone, threads);
}

void make_source(BoundSource* self, nb::str name, nb::list paths, Array<std::uint64_t> file_nbytes,
                 Array<std::int64_t> file_mtime_ns, std::uint64_t itemsize, std::uint32_t swap,
                 std::vector<std::uint64_t> row_shape, const std::vector<BoundForm>& forms,
                 Array<std::int32_t> part_file, Array<std::int32_t> part_form, Array<std::int64_t> part_first,
                 Array<std::int64_t> part_chunks, Array<std::uint64_t> chunk_index, Array<std::uint64_t> chunk_offset,
                 Array<std::uint64_t> chunk_nbytes, Array<std::uint32_t> chunk_mask, double bypass, bool mapped,
                 const std::optional<Array<std::uint64_t>>& file_inode,
                 const std::optional<Array<std::int64_t>>& file_ctime_ns, const std::vector<std::uint64_t>& form_nbytes,
                 std::string unit, const std::optional<Array<std::int32_t>>& chunk_file,
                 const std::vector<std::optional<std::pair<BoundDecodedFile, std::optional<BoundStage>>>>& decoded) {
  if (!form_nbytes.empty() && form_nbytes.size() != forms.size()) throw nb::value_error("a size for each form, or none");
  auto source = std::make_shared<solar::Source>();
  source->name = name_of(name);
  source->unit = std::move(unit);
  source->files = files_of(paths, file_nbytes, file_mtime_ns, file_inode.value_or(Array<std::uint64_t>()),
                           file_ctime_ns.value_or(Array<std::int64_t>()));
  source->itemsize = itemsize;
  source->swap = swap;
  source->bypass = bypass;
  for (const auto& one : decoded) {
    source->decoded.push_back(one ? one->first.native : nullptr);
    source->staged.push_back(one && one->second ? solar::Staged{one->second->native, UINT64_MAX} : solar::Staged());
  }
  if (mapped) source->map();
  source->row_shape = std::move(row_shape);
  for (std::size_t i = 0; i < forms.size(); ++i) {
    source->forms.push_back(native_form(forms[i], itemsize, form_nbytes.empty() ? 0 : form_nbytes[i]));
  }
  source->part_file = view(part_file);
  source->part_form = view(part_form);
  source->part_first = view(part_first);
  source->part_chunks = view(part_chunks);
  source->chunk_index = view(chunk_index);
  source->chunk_offset = view(chunk_offset);
  source->chunk_nbytes = view(chunk_nbytes);
  source->chunk_mask = view(chunk_mask);
  const Array<std::int32_t> of_chunks = chunk_file.value_or(Array<std::int32_t>());
  source->chunk_file = view(of_chunks);
  using Held = std::tuple<Array<std::int32_t>, Array<std::int32_t>, Array<std::int64_t>, Array<std::int64_t>,
                          Array<std::uint64_t>, Array<std::uint64_t>, Array<std::uint64_t>, Array<std::uint32_t>,
                          Array<std::int32_t>>;
  // The last owner may be a wait() without the GIL, or outlive the interpreter.
  source->keep = std::shared_ptr<const Held>(
      new Held(part_file, part_form, part_first, part_chunks, chunk_index, chunk_offset, chunk_nbytes, chunk_mask,
               of_chunks),
      [](const Held* held) {
        if (!nb::is_alive()) return;
        nb::gil_scoped_acquire gil;
        delete held;
      });
  {
    nb::gil_scoped_release released;
    source->check();
  }
  new (self) BoundSource{std::move(source)};
}

// The memory of any Python object that lends it, held until the Reader is done with it.
class PythonBuffer {
 public:
  explicit PythonBuffer(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) != 0) nb::raise_python_error();
  }
  ~PythonBuffer() { PyBuffer_Release(&buffer_); }
  PythonBuffer(const PythonBuffer&) = delete;
  PythonBuffer& operator=(const PythonBuffer&) = delete;
  solar::MutableBytes bytes() const {
    return {static_cast<std::byte*>(buffer_.buf), static_cast<std::size_t>(buffer_.len)};
  }

 private:
  Py_buffer buffer_{};
};

// A Reader that keeps the outputs of its tickets alive. Its own members are touched under the GIL only.
class BoundReader {
 public:
  BoundReader(unsigned threads, unsigned depth, std::uint64_t gap, Backend backend, std::uint64_t scratch)
      : reader_(threads, depth, gap, backend, scratch) {}
  // Outputs that a thread may still write to, should its read return after all, stay for ever.
  ~BoundReader() {
    if (closed_ && !reader_.close(std::chrono::nanoseconds(0))) static_cast<void>(new Outputs(std::move(lent_)));
  }
  BoundReader(const BoundReader&) = delete;
  BoundReader& operator=(const BoundReader&) = delete;

  solar::Reader::Ticket submit(const BoundSource& source, Array<std::int64_t> rows, nb::handle out,
                               std::optional<Array<std::int64_t>> positions, std::optional<Array<std::int64_t>> counts) {
    solar::Work work;
    work.source = source.native;
    if (counts) work.counts = view(*counts);
    return begin(std::move(work), rows, out, positions);
  }
  solar::Reader::Ticket submit_boxes(const BoundBoxes& boxes, Array<std::int64_t> samples, Array<std::int64_t> corners,
                                     nb::handle out, std::optional<Array<std::int64_t>> positions) {
    solar::Work work;
    work.source = boxes.source;
    work.boxes = boxes.native;
    work.corners = view(corners);
    return begin(std::move(work), samples, out, positions);
  }

  solar::Reader::Ticket begin(solar::Work work, const Array<std::int64_t>& rows, nb::handle out,
                              const std::optional<Array<std::int64_t>>& positions) {
    const auto lent = std::make_shared<PythonBuffer>(out);
    solar::Reader::Ticket ticket = 0;
    work.rows = view(rows);
    work.out = lent->bytes();
    if (positions) work.positions = view(*positions);
    {
      nb::gil_scoped_release released;
      ticket = reader_.submit(work);
    }
    try {
      lent_.emplace(ticket, lent);
    } catch (...) {  // no memory to note it: it may not be written to when nobody keeps it any more
      reader_.abandon(ticket);
      while (!ended(ticket)) std::this_thread::yield();
      throw;
    }
    sweep();
    return ticket;
  }

  // Keeps `out` while the read of this ticket, begun elsewhere, may write to it.
  void lend(solar::Reader::Ticket ticket, nb::handle out) {
    lent_.emplace(ticket, std::make_shared<PythonBuffer>(out));
  }

  // The ticket's own counts, or None.
  nb::object wait(solar::Reader::Ticket ticket, double seconds) {
    const std::chrono::nanoseconds limit = nanoseconds(seconds);
    solar::ReaderStats counts;
    bool here = false;
    try {
      nb::gil_scoped_release released;
      here = reader_.wait(ticket, limit, &counts);
    } catch (const std::invalid_argument&) {  // another thread waited for it, and may be about to let go
      throw;
    } catch (...) {
      if (::getpid() == process_ && !closed_) lent_.extract(ticket);
      throw;
    }
    if (!here) return nb::none();
    lent_.extract(ticket);
    sweep();
    return counts_of(counts);
  }

  nb::str waiting_for(solar::Reader::Ticket ticket) const {
    std::string found;
    {
      nb::gil_scoped_release released;
      found = reader_.waiting_for(ticket);
    }
    return solar::bind::text(found);
  }

  // Gives up a ticket, at once; its output is let go in the first call after the native threads are done with it.
  void abandon(solar::Reader::Ticket ticket) {
    if (::getpid() != process_ || closed_ || !lent_.contains(ticket)) return;
    reader_.abandon(ticket);
    abandoned_.push_back(ticket);
    sweep();
  }

  bool close(double seconds) {
    const std::chrono::nanoseconds limit = nanoseconds(seconds);
    closed_ = true;
    {
      nb::gil_scoped_release released;
      if (!reader_.close(limit)) return false;
    }
    abandoned_.clear();
    const auto done = std::exchange(lent_, {});
    return true;
  }

  const solar::Reader& native() const { return reader_; }
  solar::Reader& native() { return reader_; }

 private:
  using Outputs = std::unordered_map<solar::Reader::Ticket, std::shared_ptr<PythonBuffer>>;

  // Lets go of the outputs of abandoned tickets that have ended. That may run Python code, which may come back here.
  void sweep() {
    std::vector<Outputs::node_type> done;
    for (const solar::Reader::Ticket ticket : std::exchange(abandoned_, {})) {
      if (ended(ticket)) {
        done.push_back(lent_.extract(ticket));
      } else {
        abandoned_.push_back(ticket);
      }
    }
  }
  bool ended(solar::Reader::Ticket ticket) {
    try {
      return reader_.wait(ticket, std::chrono::nanoseconds(0));
    } catch (const solar::Error&) {  // of a ticket that nobody asks about any more
      return true;
    }
  }

  const pid_t process_ = ::getpid();
  bool closed_ = false;
  Outputs lent_;
  std::vector<solar::Reader::Ticket> abandoned_;
  solar::Reader reader_;  // last: goes first, and joins its threads before the memory goes
};

Backend backend_of(const std::string& word) {
  if (word == "auto") return Backend::automatic;
  if (word == "pread") return Backend::pread;
  if (word == "uring") return Backend::uring;
  throw nb::value_error(("backend must be \"auto\", \"pread\" or \"uring\", not \"" + word + "\"").c_str());
}

nb::dict stats(const BoundReader& reader) {
  const solar::ReaderStats found = reader.native().stats();
  nb::dict out;
  for (const solar::NamedCount& one : solar::named_counts) out[one.name] = found.*one.count;
  return out;
}

nb::tuple count_names() {
  nb::list names;
  for (const solar::NamedCount& one : solar::named_counts) names.append(one.name);
  return nb::tuple(names);
}

}  // namespace

namespace solar::bind {

Reader& native_reader(nb::handle reader) { return nb::cast<BoundReader&>(reader).native(); }

nb::tuple counts_of(const solar::ReaderStats& stats) {
  auto out = nb::steal<nb::tuple>(PyTuple_New(solar::named_counts.size()));
  if (!out.is_valid()) nb::raise_python_error();
  for (std::size_t i = 0; i < solar::named_counts.size(); ++i) {
    nb::int_ count(stats.*solar::named_counts[i].count);
    if (PyTuple_SetItem(out.ptr(), i, count.release().ptr()) != 0) nb::raise_python_error();
  }
  return out;
}

std::chrono::nanoseconds nanoseconds(double seconds) {
  if (std::isnan(seconds)) throw nb::value_error("seconds must be a number");
  const std::chrono::duration<double> limit(std::clamp(seconds, 0.0, 1e8));
  return std::chrono::duration_cast<std::chrono::nanoseconds>(limit);
}

}  // namespace solar::bind

void bind_reader(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<BoundSource>(module, "Source")
      .def("__init__", &make_source, "name"_a, "paths"_a, "file_nbytes"_a.noconvert(), "file_mtime_ns"_a.noconvert(),
           "itemsize"_a, "swap"_a, "row_shape"_a, "forms"_a, "part_file"_a.noconvert(), "part_form"_a.noconvert(),
           "part_first"_a.noconvert(), "part_chunks"_a.noconvert(), "chunk_index"_a.noconvert(),
           "chunk_offset"_a.noconvert(), "chunk_nbytes"_a.noconvert(), "chunk_mask"_a.noconvert(), "bypass"_a = 0.0,
           "mapped"_a = false, "file_inode"_a.noconvert() = nb::none(), "file_ctime_ns"_a.noconvert() = nb::none(),
           "form_nbytes"_a = std::vector<std::uint64_t>(), "unit"_a = "sample",
           "chunk_file"_a.noconvert() = nb::none(), "decoded"_a = nb::list())
      .def_prop_ro("row_nbytes", [](const BoundSource& source) { return source.native->row_nbytes(); });
  nb::class_<BoundReader>(module, "Reader")
      .def(
          "__init__",
          [](BoundReader* self, unsigned threads, unsigned depth, std::uint64_t gap, const std::string& backend,
             std::uint64_t scratch) { new (self) BoundReader(threads, depth, gap, backend_of(backend), scratch); },
          "threads"_a, "depth"_a, "gap"_a, "backend"_a, "scratch"_a = solar::Reader::most_scratch)
      .def("submit", &BoundReader::submit, "source"_a, "rows"_a.noconvert(), "out"_a,
           "positions"_a.noconvert() = nb::none(), "counts"_a.noconvert() = nb::none())
      .def("submit_boxes", &BoundReader::submit_boxes, "boxes"_a, "samples"_a.noconvert(), "corners"_a.noconvert(),
           "out"_a, "positions"_a.noconvert() = nb::none())
      .def("lend", &BoundReader::lend, "ticket"_a, "out"_a)
      .def("wait", &BoundReader::wait, "ticket"_a, "seconds"_a)
      .def("waiting_for", &BoundReader::waiting_for, "ticket"_a)
      .def("abandon", &BoundReader::abandon, "ticket"_a)
      .def("close", &BoundReader::close, "seconds"_a = std::numeric_limits<double>::infinity())
      .def_prop_ro(
          "backend",
          [](const BoundReader& reader) { return reader.native().backend() == Backend::uring ? "uring" : "pread"; })
      .def("progress", [](const BoundReader& of, solar::Reader::Ticket last) { return of.native().progress(last); })
      .def_prop_ro("opened", [](const BoundReader& reader) { return reader.native().opened(); })
      .def_prop_ro("wakes", [](const BoundReader& reader) { return reader.native().wakes(); })
      .def("stats", &stats);
  module.def("check_unchanged", &check_unchanged, "paths"_a, "file_nbytes"_a.noconvert(), "file_mtime_ns"_a.noconvert(),
             "file_inode"_a.noconvert(), "file_ctime_ns"_a.noconvert(), "gone"_a, "threads"_a);
  module.def("count_names", &count_names);
}
