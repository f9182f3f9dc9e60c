// read_metadata, read_metadata_of_many, read_attributes, chunk_table, read_groups, varying_places.

#include "solar/metadata.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>

#include "arrays.hpp"
#include "solar/attributes.hpp"
#include "solar/groups.hpp"
#include "solar/varying.hpp"
#include "text.hpp"

namespace nb = nanobind;

namespace {

using solar::bind::array;
using solar::bind::bytes_of;
using solar::bind::name_of;
using solar::bind::text;

struct Found {
  solar::Identity identity;
  solar::Metadata metadata;
};

// What libhdf5 takes from the environment. REQUIRES: the GIL, as Python changes the environment under it.
std::string link_prefixes() {
  const char* prefixes = std::getenv("HDF5_EXT_PREFIX");
  return prefixes == nullptr ? "" : prefixes;
}

Found find(const std::string& path, const std::string& name, const std::string& prefixes,
           std::size_t most = std::numeric_limits<std::size_t>::max()) {
  const solar::File file = solar::File::plain(path);
  return {file.identity(), solar::read_metadata(file, name, solar::undefined_address, prefixes, most)};
}

const char* word(solar::Storage storage) {
  switch (storage) {
    case solar::Storage::compact: return "compact";
    case solar::Storage::contiguous: return "contiguous";
    case solar::Storage::chunked: return "chunked";
    case solar::Storage::external: return "external";
    case solar::Storage::virtual_: return "virtual";
  }
  return "";
}

const char* word(solar::Index index) {
  switch (index) {
    case solar::Index::none: return "";
    case solar::Index::btree1: return "btree1";
    case solar::Index::single: return "single";
    case solar::Index::implicit: return "implicit";
    case solar::Index::fixed_array: return "fixed_array";
    case solar::Index::extensible_array: return "extensible_array";
    case solar::Index::btree2: return "btree2";
  }
  return "";
}

nb::bytes raw(const std::vector<std::byte>& bytes) {
  return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

nb::list filters_of(const solar::Dataset& dataset) {
  nb::list filters;
  for (const solar::Filter& filter : dataset.filters) {
    filters.append(nb::make_tuple(filter.id, filter.flags, filter.values));
  }
  return filters;
}

// The bytes of datatypes: one object for all datasets that share one.
class Datatypes {
 public:
  nb::bytes of(const solar::Dataset& dataset) {
    if (!dataset.datatype) return nb::bytes("", 0);
    const auto known = made_.find(dataset.datatype.get());
    if (known != made_.end()) return known->second;
    return made_.emplace(dataset.datatype.get(), raw(*dataset.datatype)).first->second;
  }

 private:
  std::unordered_map<const void*, nb::bytes> made_;
};

nb::dict to_dict(const solar::Dataset& dataset, Datatypes& datatypes) {
  nb::dict out;
  out["name"] = text(dataset.name);
  out["path"] = text(dataset.path);
  out["target"] = text(dataset.target);
  out["problem"] = text(dataset.problem);
  out["elsewhere"] = text(dataset.elsewhere);
  out["null_space"] = dataset.null_space;
  out["shape"] = dataset.shape;
  out["maxshape"] = dataset.maxshape;
  out["datatype"] = datatypes.of(dataset);
  out["itemsize"] = dataset.itemsize;
  out["storage"] = word(dataset.storage);
  out["address"] = dataset.address;
  out["nbytes"] = dataset.nbytes;
  out["chunk"] = dataset.chunk;
  out["index"] = word(dataset.index);
  out["filters"] = filters_of(dataset);
  out["fill"] = raw(dataset.fill);
  out["header_address"] = dataset.header_address;
  out["file_nbytes"] = dataset.identity.nbytes;
  out["file_mtime_ns"] = dataset.identity.mtime_ns;
  out["file_inode"] = dataset.identity.inode;
  out["file_ctime_ns"] = dataset.identity.ctime_ns;
  return out;
}

nb::dict to_dict(const Found& found) {
  nb::dict out;
  nb::list datasets, linked, aliases;
  Datatypes datatypes;
  for (const solar::Dataset& dataset : found.metadata.datasets) datasets.append(to_dict(dataset, datatypes));
  for (const solar::Dataset& dataset : found.metadata.linked) linked.append(to_dict(dataset, datatypes));
  for (const solar::Alias& alias : found.metadata.aliases) {
    aliases.append(nb::make_tuple(text(alias.name), text(alias.path), text(alias.target)));
  }
  nb::list problems;
  for (const std::string& problem : found.metadata.problems) problems.append(text(problem));
  out["nbytes"] = found.identity.nbytes;
  out["mtime_ns"] = found.identity.mtime_ns;
  out["inode"] = found.identity.inode;
  out["ctime_ns"] = found.identity.ctime_ns;
  out["datasets"] = datasets;
  out["linked"] = linked;
  out["aliases"] = aliases;
  out["problems"] = problems;
  return out;
}

nb::dict read_metadata(nb::str python_path, nb::str python_name, std::size_t most) {
  const std::string path = bytes_of(python_path), name = name_of(python_name), prefixes = link_prefixes();
  std::optional<Found> found;
  {
    nb::gil_scoped_release released;
    found = find(path, name, prefixes, most);
  }
  return to_dict(*found);
}

// Reads the files in order of `next`; remembers the first bad one, and reads none behind it.
class Many {
 public:
  Many(const std::vector<std::string>& paths, const std::string& name, std::string prefixes)
      : paths_(paths), name_(name), prefixes_(std::move(prefixes)), found_(paths.size()) {}

  std::vector<Found> read(unsigned threads) {
    {
      std::vector<std::jthread> workers;
      for (unsigned i = 1; i < threads; ++i) workers.emplace_back([this] { work(); });
      work();
    }
    if (error_) std::rethrow_exception(error_);
    return std::move(found_);
  }

 private:
  void work() {
    for (std::size_t i = next_++; i < bad_; i = next_++) {
      try {
        found_[i] = find(paths_[i], name_, prefixes_);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (i < bad_) {
          bad_ = i;
          error_ = std::current_exception();
        }
      }
    }
  }

  const std::vector<std::string>& paths_;
  const std::string& name_;
  const std::string prefixes_;
  std::vector<Found> found_;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<std::size_t> bad_ = paths_.size();  // no file from here on is read
  std::mutex mutex_;
  std::exception_ptr error_;
};

nb::list read_metadata_of_many(nb::list python_paths, nb::str python_name, unsigned threads) {
  constexpr unsigned most_threads = 256;
  if (threads < 1 || threads > most_threads) throw nb::value_error("threads must be from 1 to 256");
  std::vector<std::string> paths;
  for (const nb::handle path : python_paths) paths.push_back(bytes_of(path));
  const std::string name = name_of(python_name), prefixes = link_prefixes();
  std::vector<Found> all;
  {
    nb::gil_scoped_release released;
    all = Many(paths, name, prefixes).read(static_cast<unsigned>(std::min<std::size_t>(threads, paths.size())));
  }
  nb::list out;
  for (const Found& found : all) out.append(to_dict(found));
  return out;
}

nb::dict read_attributes(nb::str python_path, nb::str python_name, nb::list python_wanted,
                         std::uint64_t header_address) {
  const std::string path = bytes_of(python_path), name = name_of(python_name);
  std::vector<std::string> wanted;
  for (const nb::handle one : python_wanted) wanted.push_back(name_of(one));
  std::vector<solar::Attribute> found;
  {
    nb::gil_scoped_release released;
    found = solar::read_attributes(solar::File::plain(path), name, wanted, header_address);
  }
  nb::dict out;
  for (const solar::Attribute& one : found)
    out[text(one.name)] = nb::make_tuple(raw(one.datatype), one.values, raw(one.bytes), text(one.problem));
  return out;
}

using Seen = nb::ndarray<std::uint64_t, nb::shape<1>, nb::c_contig, nb::device::cpu>;

nb::tuple chunk_table(nb::str python_path, nb::str python_name, std::uint64_t header_address,
                      const std::optional<Seen>& found) {
  const std::string path = bytes_of(python_path), name = name_of(python_name);
  solar::ChunkTable table;
  {
    nb::gil_scoped_release released;
    const solar::File file = solar::File::plain(path);
    const solar::Metadata metadata = solar::read_metadata(file, name, header_address);
    const solar::Dataset& dataset = metadata.datasets.at(0);
    if (dataset.storage != solar::Storage::chunked || !dataset.elsewhere.empty() || !dataset.path.empty()) {
      throw solar::Error(solar::Kind::layout, path + ": " + dataset.name + " has no chunks that can be read here");
    }
    table = solar::chunk_table(file, metadata.facts, dataset, found ? found->data() : nullptr);
  }
  return nb::make_tuple(array(std::move(table.index)), array(std::move(table.offset)), array(std::move(table.nbytes)),
                        array(std::move(table.mask)));
}

// How a dataset of all groups is stored, and the arrays that say where each lies.
nb::tuple to_tuple(solar::GroupColumn&& column, const solar::Identity& identity) {
  nb::list kinds;
  Datatypes datatypes;
  for (solar::Dataset& dataset : column.kinds) {
    dataset.identity = identity;
    kinds.append(to_dict(dataset, datatypes));
  }
  solar::ChunkTable& chunks = column.chunks;
  return nb::make_tuple(kinds, array(std::move(column.kind)), column.rank, array(std::move(column.shape)),
                        array(std::move(column.first)), array(std::move(chunks.index)), array(std::move(chunks.offset)),
                        array(std::move(chunks.nbytes)), array(std::move(chunks.mask)));
}

nb::tuple read_groups(nb::str python_path, nb::str python_pattern, nb::list python_wanted) {
  const std::string path = bytes_of(python_path), pattern = name_of(python_pattern);
  std::vector<std::string> wanted;
  for (const nb::handle one : python_wanted) wanted.push_back(name_of(one));
  solar::GroupTable found;
  {
    nb::gil_scoped_release released;
    found = solar::read_groups(solar::File::plain(path), pattern, wanted);
  }
  nb::list columns;
  for (solar::GroupColumn& column : found.columns) columns.append(to_tuple(std::move(column), found.identity));
  const solar::Identity& own = found.identity;
  return nb::make_tuple(nb::bytes(found.names.data(), found.names.size()), array(std::move(found.begins)), columns,
                        nb::make_tuple(own.nbytes, own.mtime_ns, own.inode, own.ctime_ns));
}

nb::tuple varying_places(nb::str python_path, nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig> references,
                         std::uint64_t itemsize) {
  constexpr std::uint64_t widest = 32;
  if (itemsize > widest) throw nb::value_error("a value has at most 32 bytes");
  const std::string path = bytes_of(python_path);
  const solar::Bytes bytes = std::as_bytes(std::span(references.data(), references.size()));
  solar::VaryingPlaces found;
  {
    nb::gil_scoped_release released;
    found = solar::varying_places(solar::File::plain(path), bytes, itemsize);
  }
  const solar::Identity& own = found.identity;
  return nb::make_tuple(array(std::move(found.offset)), array(std::move(found.length)),
                        nb::make_tuple(own.nbytes, own.mtime_ns, own.inode, own.ctime_ns));
}

}  // namespace

void bind_metadata(nb::module_& module) {
  module.def("read_metadata", &read_metadata, nb::arg("path"), nb::arg("name") = "",
             nb::arg("most") = std::numeric_limits<std::size_t>::max());
  module.def("read_metadata_of_many", &read_metadata_of_many, nb::arg("paths"), nb::arg("name"), nb::arg("threads"));
  module.def("read_attributes", &read_attributes, nb::arg("path"), nb::arg("name"), nb::arg("wanted"),
             nb::arg("header_address") = solar::undefined_address);
  module.def("chunk_table", &chunk_table, nb::arg("path"), nb::arg("name"),
             nb::arg("header_address") = solar::undefined_address, nb::arg("found") = nb::none());
  module.def("read_groups", &read_groups, nb::arg("path"), nb::arg("pattern"), nb::arg("wanted"));
  module.def("varying_places", &varying_places, nb::arg("path"), nb::arg("references"), nb::arg("itemsize"));
}
