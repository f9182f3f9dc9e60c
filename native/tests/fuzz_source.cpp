// Fuzzes what says where rows lie, which comes from indexes and their caches: it is refused, or its rows can be read.
//
// The input: the shape, the forms, the parts and the chunks of one file, then the file's bytes. What check() lets pass
// is read, all rows at a time and one after another, into memory filled in two ways: each time the same, or an Error.
#include <algorithm>
#include <optional>
#include <utility>

#include <sys/stat.h>

#include "fuzz.hpp"
#include "solar/codec.hpp"
#include "solar/reader.hpp"

namespace {

using namespace solar;

constexpr std::size_t most_rows = 24, most_chunks = 64;
constexpr std::uint64_t most_nbytes = 1 << 18;  // of all rows, and of one chunk

// The arrays that a Source only looks at.
struct Arrays {
  std::vector<std::int32_t> part_file, part_form;
  std::vector<std::int64_t> part_first, part_chunks;
  std::vector<std::uint64_t> index, offset, nbytes;
  std::vector<std::uint32_t> mask;
};

// Its numbers go up mostly, as they must.
std::vector<std::int64_t> steps(fuzz::Input& input, std::size_t count) {
  std::vector<std::int64_t> all(count);
  std::uint64_t sum = 0;
  for (std::int64_t& one : all) one = static_cast<std::int64_t>(std::exchange(sum, sum + input.number()));
  if (!input.flag()) return all;
  if (!all.empty()) all[input.upto(all.size() - 1)] = static_cast<std::int64_t>(input.number());
  return all;
}

std::vector<Filter> filters_of(fuzz::Input& input, std::uint64_t itemsize) {
  switch (input.upto(5)) {
    case 0: return {{2, 0, {static_cast<std::uint32_t>(itemsize)}}};
    case 1: return {{1, 0, {4}}};
    case 2: return {{32004, 0, {}}, {3, 0, {}}};
    case 3: return {{codec_filter, 0, {}}};
    default: return {};
  }
}

std::uint64_t product(const std::vector<std::uint64_t>& lengths, std::uint64_t product) {
  for (const std::uint64_t length : lengths)
    if (__builtin_mul_overflow(product, length, &product)) return UINT64_MAX;
  return product;
}

Form form_of(fuzz::Input& input, const Source& source) {
  Form form;
  form.chunk.resize(input.upto(7) == 0 ? input.upto(4) : 1 + source.row_shape.size());
  for (std::uint64_t& length : form.chunk) length = input.number();
  if (input.flag()) form.fill.assign(input.upto(7) == 0 ? input.upto(9) : source.itemsize, std::byte{7});
  const std::uint64_t nbytes = product(form.chunk, source.itemsize);
  if (nbytes == UINT64_MAX) throw Error(Kind::layout, "a chunk of over 2^64 bytes");  // as Python's side of it does
  form.pipeline = Pipeline(filters_of(input, source.itemsize), source.itemsize, nbytes);
  return form;
}

void add_chunks(fuzz::Input& input, Arrays& arrays, std::size_t chunks) {
  const bool counted = input.flag();
  for (std::size_t i = 0; i < chunks; ++i) {
    if (counted) arrays.index.push_back(i + (input.flag() ? input.number() : 0));
    arrays.offset.push_back(input.number());
    arrays.nbytes.push_back(input.number());
    arrays.mask.push_back(input.flag() ? static_cast<std::uint32_t>(input.number()) : 0);
  }
}

std::shared_ptr<Source> source_of(fuzz::Input& input, const fuzz::MemoryFile& file) {
  auto source = std::make_shared<Source>();
  auto arrays = std::make_shared<Arrays>();
  source->name = "/x";
  source->itemsize = 1 + input.upto(8);
  if (input.upto(3) == 0) source->swap = static_cast<std::uint32_t>(input.upto(9));
  source->row_shape.resize(input.upto(3));
  for (std::uint64_t& length : source->row_shape) length = input.number();
  for (std::size_t forms = 1 + input.upto(1); forms > 0; --forms) source->forms.push_back(form_of(input, *source));
  const std::size_t parts = 1 + input.upto(2);
  for (std::size_t i = 0; i < parts; ++i) {
    arrays->part_file.push_back(input.upto(15) == 0 ? input.take<std::int32_t>() : 0);
    arrays->part_form.push_back(input.upto(15) == 0 ? input.take<std::int32_t>() : static_cast<int>(input.upto(1)));
  }
  arrays->part_first = steps(input, parts + 1);
  arrays->part_chunks = steps(input, parts + 1);
  const auto chunks = static_cast<std::size_t>(arrays->part_chunks.back());
  add_chunks(input, *arrays, chunks < most_chunks ? chunks : input.upto(3));
  file.write(input.rest());
  struct stat status {};
  if (::stat(file.path().c_str(), &status) != 0) throw std::runtime_error("no file in memory");
  source->files = {{file.path(), static_cast<std::uint64_t>(status.st_size),
                    std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec}};
  source->part_file = arrays->part_file;
  source->part_form = arrays->part_form;
  source->part_first = arrays->part_first;
  source->part_chunks = arrays->part_chunks;
  source->chunk_index = arrays->index;
  source->chunk_offset = arrays->offset;
  source->chunk_nbytes = arrays->nbytes;
  source->chunk_mask = arrays->mask;
  source->keep = arrays;
  return source;
}

std::optional<fuzz::Values> read_rows(const std::shared_ptr<const Source>& source, std::vector<std::int64_t> rows,
                                      std::byte before) {
  static Reader reader(1, 4, 64, Backend::pread);
  fuzz::Values out(rows.size() * source->row_nbytes(), before);
  const Reader::Ticket ticket = reader.submit(source, rows, out);
  try {
    fuzz::require(reader.wait(ticket, std::chrono::seconds(20)), "a read does not end");
    return out;
  } catch (const Error& error) {
    fuzz::require(error.kind() == Kind::codec || error.kind() == Kind::read, "a damaged chunk is another error");
    return {};
  }
}

bool is_small(const Source& source) {
  const auto rows = static_cast<std::uint64_t>(source.part_first.back());
  if (rows > most_rows || source.row_nbytes() > most_nbytes / most_rows) return false;
  return std::ranges::all_of(source.forms, [&](const Form& form) {
    return form.pipeline.empty() || product(form.chunk, source.itemsize) <= most_nbytes;
  });
}

void check(const std::shared_ptr<const Source>& source) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(source->part_first.back()));
  for (std::size_t row = 0; row < all.size(); ++row) all[row] = static_cast<std::int64_t>(row);
  const auto together = read_rows(source, all, std::byte{0});
  fuzz::require(together == read_rows(source, all, std::byte{255}), "a row is what was in memory before");
  fuzz::Values alone;
  for (const std::int64_t row : all) {
    const auto one = read_rows(source, {row}, std::byte{90});
    if (!one) return fuzz::require(!together, "a row that cannot be read alone is read with others");
    alone.insert(alone.end(), one->begin(), one->end());
  }
  fuzz::require(together == alone, "a row read alone is another one");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const fuzz::MemoryFile file;
  fuzz::Input input(data, size);
  try {
    const std::shared_ptr<const Source> source = source_of(input, file);
    source->check();
    if (is_small(*source)) check(source);
  } catch (const Error& error) {
    fuzz::require(error.kind() == Kind::layout, "arrays that do not fit are an error of another kind");
  }
  return 0;
}
