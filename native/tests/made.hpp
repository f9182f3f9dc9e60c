// Random Sources for tests, with the values that they must give: written slowly and obviously, element by element.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <sys/stat.h>
#include <sys/uio.h>

#include "solar/file.hpp"
#include "solar/source.hpp"

namespace made {

using solar::Source;
using Values = std::vector<std::byte>;

// How many times a test repeats itself that does so `plain` times elsewhere. ThreadSanitizer takes fifty times as long, and
// looks for races only: what each repetition tries (layouts, sizes, seeds) is tried in full under AddressSanitizer. One in
// six is left here, so that every case of a seed modulo 2, 3, 4 or 6 still comes.
template <class Count>
constexpr Count repeats(Count plain) {
#ifdef __SANITIZE_THREAD__
  return (plain + 5) / 6;
#else
  return plain;
#endif
}

// A folder of its own that goes with it.
class Folder {
 public:
  explicit Folder(const std::filesystem::path& where = std::filesystem::temp_directory_path()) {
    std::string name = (where / "solar-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline solar::SourceFile write_file(const std::string& path, const Values& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return {path, solar::identity_of(path)};
}

// Some file systems in memory cannot say whether a read would wait; then no mapping is warm.
inline bool can_look(const solar::File& file) {
  std::byte byte{};
  const iovec to{&byte, 1};
  return ::preadv2(file.descriptor(), &to, 1, 0, RWF_NOWAIT) == 1;
}

// The arrays that a Source only looks at.
struct Arrays {
  std::vector<std::int32_t> part_file, part_form;
  std::vector<std::int64_t> part_first{0}, part_chunks{0};
  std::vector<std::uint64_t> index, offset, nbytes;
  std::vector<std::uint32_t> mask;
};

inline void look(Source& source, std::shared_ptr<Arrays> arrays) {
  source.part_file = arrays->part_file;
  source.part_form = arrays->part_form;
  source.part_first = arrays->part_first;
  source.part_chunks = arrays->part_chunks;
  source.chunk_index = arrays->index;
  source.chunk_offset = arrays->offset;
  source.chunk_nbytes = arrays->nbytes;
  source.chunk_mask = arrays->mask;
  source.keep = arrays;
}

// So many rows of this shape, one after another from byte `offset` of one file.
inline std::shared_ptr<Source> contiguous_in(solar::SourceFile file, std::uint64_t offset, std::uint64_t rows,
                                             const std::vector<std::uint64_t>& row_shape, std::uint32_t itemsize,
                                             std::uint32_t swap = 0) {
  auto source = std::make_shared<Source>();
  source->name = "/x";
  source->files = {std::move(file)};
  source->itemsize = itemsize;
  source->swap = swap;
  source->row_shape = row_shape;
  source->forms.push_back({{0}, {}, {}});
  source->forms[0].chunk.insert(source->forms[0].chunk.end(), row_shape.begin(), row_shape.end());
  auto arrays = std::make_shared<Arrays>();
  arrays->part_file = {0};
  arrays->part_form = {0};
  arrays->part_first = {0, static_cast<std::int64_t>(rows)};
  arrays->part_chunks = {0, 1};
  arrays->offset = {offset};
  arrays->nbytes = {rows * source->row_nbytes()};
  arrays->mask = {0};
  look(*source, arrays);
  source->check();
  return source;
}

// Rows of `row_nbytes` bytes, contiguous from byte `offset` of one file.
inline std::shared_ptr<Source> contiguous(const Folder& folder, std::uint64_t rows, std::uint64_t row_nbytes,
                                          std::uint64_t offset = 512) {
  Values bytes(offset + rows * row_nbytes);
  std::mt19937_64 random(7);
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t some = random();
    std::memcpy(bytes.data() + at, &some, std::min(sizeof some, bytes.size() - at));
  }
  return contiguous_in(write_file(folder / "contiguous.h5", bytes), offset, rows, {row_nbytes}, 1);
}

// HDF5's shuffle, the one filter that a test can apply in two lines.
inline Values shuffled(const Values& raw, std::size_t itemsize) {
  Values out(raw.size());
  const std::size_t items = raw.size() / itemsize;
  for (std::size_t i = 0; i < items * itemsize; ++i) out[i % itemsize * items + i / itemsize] = raw[i];
  return out;
}

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  std::uint64_t upto(std::uint64_t most) { return std::uniform_int_distribution<std::uint64_t>(0, most)(engine_); }
  std::uint64_t between(std::uint64_t least, std::uint64_t most) { return least + upto(most - least); }
  bool one_in(std::uint64_t n) { return upto(n - 1) == 0; }
  std::byte byte() { return static_cast<std::byte>(upto(255)); }

 private:
  std::mt19937_64 engine_;
};

// A Source of one to three parts with random shapes, chunks, filters, gaps and missing chunks, and all its rows.
struct Sample {
  std::shared_ptr<Source> source = std::make_shared<Source>();
  Values rows;
};

namespace detail {

inline std::uint64_t product(const std::vector<std::uint64_t>& dims, std::uint64_t start = 1) {
  for (const std::uint64_t d : dims) start *= d;
  return start;
}

// The position of linear index `i` in a box of `dims`.
inline std::vector<std::uint64_t> unravel(std::uint64_t i, const std::vector<std::uint64_t>& dims) {
  std::vector<std::uint64_t> at(dims.size());
  for (std::size_t d = dims.size(); d-- > 0; i /= dims[d]) at[d] = i % dims[d];
  return at;
}

inline std::uint64_t ravel(const std::vector<std::uint64_t>& at, const std::vector<std::uint64_t>& dims) {
  std::uint64_t i = 0;
  for (std::size_t d = 0; d < dims.size(); ++d) i = i * dims[d] + at[d];
  return i;
}

// The bytes of chunk `c` of a part, cut out of its values; what lies outside the shape is noise.
inline Values cut_chunk(const Values& values, const std::vector<std::uint64_t>& shape,
                        const std::vector<std::uint64_t>& chunk, const std::vector<std::uint64_t>& grid,
                        std::uint64_t c, std::uint64_t itemsize, Random& random) {
  Values raw(product(chunk, itemsize));
  const auto corner = unravel(c, grid);
  for (std::uint64_t e = 0; e < product(chunk); ++e) {
    auto at = unravel(e, chunk);
    bool inside = true;
    for (std::size_t d = 0; d < at.size(); ++d) inside &= (at[d] += corner[d] * chunk[d]) < shape[d];
    for (std::uint64_t b = 0; b < itemsize; ++b) {
      raw[e * itemsize + b] = inside ? values[ravel(at, shape) * itemsize + b] : random.byte();
    }
  }
  return raw;
}

// Sets the elements of chunk `c` of a part to the fill value.
inline void set_fill(Values& values, const std::vector<std::uint64_t>& shape, const std::vector<std::uint64_t>& chunk,
                     const std::vector<std::uint64_t>& grid, std::uint64_t c, std::uint64_t itemsize,
                     const Values& fill) {
  for (std::uint64_t i = 0; i < product(shape); ++i) {
    auto at = unravel(i, shape);
    for (std::size_t d = 0; d < at.size(); ++d) at[d] /= chunk[d];
    if (ravel(at, grid) != c) continue;
    for (std::uint64_t b = 0; b < itemsize; ++b) values[i * itemsize + b] = fill.empty() ? std::byte{0} : fill[b];
  }
}

}  // namespace detail

inline solar::Form random_form(const Source& source, Random& random) {
  solar::Form form;
  form.chunk.push_back(random.between(1, 5));
  for (const std::uint64_t n : source.row_shape) form.chunk.push_back(random.one_in(2) ? n : random.between(1, n + 2));
  if (random.one_in(2)) {
    form.fill.resize(source.itemsize);
    for (std::byte& b : form.fill) b = random.byte();
  }
  if (random.one_in(2)) {
    form.pipeline = solar::Pipeline({{2, 0, {static_cast<std::uint32_t>(source.itemsize)}}}, source.itemsize,
                                    detail::product(form.chunk, source.itemsize));
  } else if (random.one_in(3)) {
    form.chunk.front() = 0;  // contiguous
    std::copy(source.row_shape.begin(), source.row_shape.end(), form.chunk.begin() + 1);
  }
  return form;
}

// Appends a part in a file of its own, and its values to the rows. Without an index, chunks are missing only at the end.
inline void add_part(Sample& sample, Arrays& arrays, const std::string& path, bool sparse, Random& random) {
  using namespace detail;
  Source& source = *sample.source;
  solar::Form form = random_form(source, random);
  std::vector<std::uint64_t> shape{random.between(1, 12)};
  shape.insert(shape.end(), source.row_shape.begin(), source.row_shape.end());
  std::vector<std::uint64_t> chunk = form.chunk;
  if (chunk[0] == 0) chunk[0] = shape[0];
  std::vector<std::uint64_t> grid(shape.size());
  for (std::size_t d = 0; d < grid.size(); ++d) grid[d] = (shape[d] + chunk[d] - 1) / chunk[d];
  Values values(product(shape, source.itemsize));
  for (std::byte& b : values) b = random.byte();
  Values file(random.upto(40));
  const std::uint64_t stored = random.one_in(3) ? random.upto(product(grid)) : product(grid);
  for (std::uint64_t c = 0; c < product(grid); ++c) {
    if (sparse ? random.one_in(5) : c >= stored) {
      set_fill(values, shape, chunk, grid, c, source.itemsize, form.fill);
      continue;
    }
    Values raw = cut_chunk(values, shape, chunk, grid, c, source.itemsize, random);
    const bool masked = random.one_in(4);
    if (!form.pipeline.empty() && !masked) raw = shuffled(raw, source.itemsize);
    file.resize(file.size() + (random.one_in(3) ? random.upto(30) : 0));
    if (sparse) arrays.index.push_back(c);
    arrays.offset.push_back(file.size());
    arrays.nbytes.push_back(raw.size());
    arrays.mask.push_back(masked ? 1 : 0);
    file.insert(file.end(), raw.begin(), raw.end());
  }
  source.files.push_back(write_file(path, file));
  source.forms.push_back(std::move(form));
  arrays.part_file.push_back(static_cast<std::int32_t>(arrays.part_file.size()));
  arrays.part_form.push_back(static_cast<std::int32_t>(arrays.part_form.size()));
  arrays.part_first.push_back(arrays.part_first.back() + static_cast<std::int64_t>(shape[0]));
  arrays.part_chunks.push_back(static_cast<std::int64_t>(arrays.offset.size()));
  sample.rows.insert(sample.rows.end(), values.begin(), values.end());
}

inline Sample random_source(const Folder& folder, unsigned seed) {
  Random random(seed);
  Sample sample;
  Source& source = *sample.source;
  auto arrays = std::make_shared<Arrays>();
  source.name = "/group/x";
  source.itemsize = std::uint64_t{1} << random.upto(3);
  if (random.one_in(2)) source.swap = static_cast<std::uint32_t>(source.itemsize);
  for (std::uint64_t d = random.upto(3); d > 0; --d) source.row_shape.push_back(random.between(1, 7));
  const bool sparse = random.one_in(2);
  for (std::uint64_t part = random.between(1, 3); part > 0; --part) {
    add_part(sample, *arrays, folder / ("part" + std::to_string(part) + ".h5"), sparse, random);
  }
  for (std::size_t i = 0; source.swap > 1 && i < sample.rows.size(); i += source.swap) {
    const auto at = sample.rows.begin() + static_cast<std::ptrdiff_t>(i);
    std::reverse(at, at + source.swap);
  }
  look(source, arrays);
  return sample;
}

}  // namespace made
