#include "solar/source.hpp"

#include "read/grid.hpp"
#include "read/mapping.hpp"

namespace solar {

namespace {

[[noreturn]] void refuse(const Source& source, const std::string& what) {
  throw Error(Kind::layout, source.name + ": " + what);
}

// `first` begins with 0 and never falls.
void check_steps(const Source& source, std::span<const std::int64_t> first, const char* what) {
  bool falls = first.empty() || first.front() != 0;
  for (std::size_t i = 1; i < first.size(); ++i) falls |= first[i] < first[i - 1];
  if (falls) refuse(source, std::string(what) + " do not count up from 0");
}

void check_arrays(const Source& s) {
  const std::size_t parts = s.part_file.size();
  const std::size_t chunks = s.chunk_offset.size();
  if (s.part_form.size() != parts || s.part_first.size() != parts + 1 || s.part_chunks.size() != parts + 1) {
    refuse(s, "the arrays of parts differ in length");
  }
  if (s.chunk_nbytes.size() != chunks || s.chunk_mask.size() != chunks ||
      (!s.chunk_index.empty() && s.chunk_index.size() != chunks) ||
      (!s.chunk_file.empty() && s.chunk_file.size() != chunks)) {
    refuse(s, "the arrays of chunks differ in length");
  }
  check_steps(s, s.part_first, "the rows of the parts");
  check_steps(s, s.part_chunks, "the chunks of the parts");
  if (static_cast<std::uint64_t>(s.part_chunks.back()) != chunks) refuse(s, "the parts do not share out the chunks");
  const std::size_t files = s.files.size();
  if (!s.decoded.empty() && (s.decoded.size() != files || s.staged.size() != files)) refuse(s, "a stage for each file");
  if (!(s.bypass >= 0 && s.bypass <= 1)) refuse(s, "the share that bypasses the page cache is from 0 to 1");
  if (s.itemsize == 0 || (s.swap != 0 && s.itemsize % s.swap != 0)) refuse(s, "its element size is wrong");
}

// A Form, made ready for checking the parts that have it.
struct Checked {
  Checked(const Source& source, const Form& form) {
    const read::Grid grid(source, form);
    rows = form.chunk.front();
    tiles = grid.tiles();
    row_nbytes = grid.chunk_row_nbytes();
    const std::size_t filters = form.pipeline.size();
    all_masked = filters >= 32 ? ~std::uint32_t{0} : (std::uint32_t{1} << filters) - 1;
    if (!form.fill.empty() && form.fill.size() != source.itemsize) refuse(source, "its fill value is not one element");
    if (filters == 0 && form.nbytes != 0) refuse(source, "chunks without filters have all rows");
    if (filters == 0) return;
    if (rows == 0) refuse(source, "contiguous data cannot have filters");
    std::uint64_t nbytes = 0;  // HDF5 has no chunk of 4 GiB
    if (__builtin_mul_overflow(rows, row_nbytes, &nbytes) || nbytes >> 32 != 0) {
      refuse(source, "a filtered chunk of 4 GiB or more");
    }
    if (form.nbytes > nbytes) refuse(source, "a chunk of more bytes than its shape has");
  }

  std::uint64_t rows = 0;        // of a chunk; 0: all of the part
  std::uint64_t tiles = 0;       // chunks that a row crosses
  std::uint64_t row_nbytes = 0;  // of a chunk
  std::uint32_t all_masked = 0;  // the mask of a chunk that no filter touched; 0 without filters
};

std::string where(const Source& s, std::size_t part, std::size_t chunk) {
  return "chunk " + std::to_string(chunk - static_cast<std::size_t>(s.part_chunks[part])) + " of " +
         s.files[s.file_of(part, chunk)].path;
}

void check_chunks(const Source& s, std::size_t part, std::uint32_t all_masked, std::uint64_t grid_chunks,
                  std::uint64_t raw) {
  const auto begin = static_cast<std::size_t>(s.part_chunks[part]);
  const auto end = static_cast<std::size_t>(s.part_chunks[part + 1]);
  for (std::size_t k = begin; !s.chunk_file.empty() && k < end; ++k)
    if (s.file_of(part, k) >= s.files.size()) refuse(s, "a chunk names a file that is not there");
  const bool one_file = s.chunk_file.empty();
  const std::uint64_t size_of_part = s.nbytes_of(static_cast<std::size_t>(s.part_file[part]));
  const auto size_at = [&](std::size_t k) { return one_file ? size_of_part : s.nbytes_of(s.file_of(part, k)); };
  const auto bad = [&](std::size_t k) {
    const std::uint64_t nbytes = s.chunk_nbytes[k], size = size_at(k);
    const bool stored_raw = (s.chunk_mask[k] & all_masked) == all_masked;
    return static_cast<unsigned>(nbytes > size) | static_cast<unsigned>(s.chunk_offset[k] > size - nbytes) |
           (static_cast<unsigned>(stored_raw) & static_cast<unsigned>(nbytes < raw));
  };
  // There are no branches in this loop, so that ten million chunks are checked in a few hundredths of a second.
  unsigned any = 0;
  for (std::size_t k = begin; k < end; ++k) any |= bad(k);
  for (std::size_t k = begin; any != 0 && k < end; ++k) {
    if (bad(k) == 0) continue;
    refuse(s, where(s, part, k) + " (" + std::to_string(s.chunk_nbytes[k]) + " bytes at " +
                  std::to_string(s.chunk_offset[k]) + ") leaves its file of " + std::to_string(size_at(k)) +
                  " bytes or is shorter than its " + std::to_string(raw) + " bytes of data");
  }
  if (s.chunk_index.empty()) {
    if (end - begin > grid_chunks) refuse(s, "more chunks than its shape has room for");
    return;
  }
  for (std::size_t k = begin + 1; k < end; ++k) any |= static_cast<unsigned>(s.chunk_index[k] <= s.chunk_index[k - 1]);
  if (any != 0 || (end > begin && s.chunk_index[end - 1] >= grid_chunks)) {
    refuse(s, "its chunks are out of order or outside its shape");
  }
}

// Where a stage keeps chunks decoded, each entry is one of them, and nothing is left to be decoded.
void check_decoded(const Source& s, std::size_t part) {
  if (s.decoded.empty()) return;
  const auto begin = static_cast<std::size_t>(s.part_chunks[part]);
  const auto end = static_cast<std::size_t>(s.part_chunks[part + 1]);
  const bool plain = s.forms[static_cast<std::size_t>(s.part_form[part])].pipeline.empty();
  for (std::size_t k = begin; k < end; ++k) {
    const auto& decoded = s.decoded[s.file_of(part, k)];
    if (decoded == nullptr) continue;
    if (!plain || !decoded->has(s.chunk_offset[k], s.chunk_nbytes[k])) {
      refuse(s, where(s, part, k) + " is none that its stage keeps decoded");
    }
  }
}

void check_part(const Source& s, std::size_t part, const std::vector<Checked>& forms) {
  const auto file = static_cast<std::size_t>(s.part_file[part]);
  const auto index = static_cast<std::size_t>(s.part_form[part]);
  if (file >= s.files.size() || index >= forms.size()) refuse(s, "a part names a file or form that is not there");
  const Checked& form = forms[index];
  const auto rows = static_cast<std::uint64_t>(s.part_first[part + 1] - s.part_first[part]);
  if (form.tiles == 0 || rows == 0) return;  // nothing is ever read
  const std::uint64_t chunk_rows = form.rows == 0 ? rows : form.rows;
  const std::uint64_t chunk_lines = (rows - 1) / chunk_rows + 1;
  std::uint64_t grid_chunks = 0;
  std::uint64_t raw = 0;
  if (__builtin_mul_overflow(chunk_lines, form.tiles, &grid_chunks) ||
      __builtin_mul_overflow(chunk_rows, form.row_nbytes, &raw)) {
    refuse(s, "its shape or chunk shape is too large to exist");
  }
  check_chunks(s, part, form.all_masked, grid_chunks, raw);
  check_decoded(s, part);
}

}  // namespace

std::uint64_t Source::row_nbytes() const {
  std::uint64_t nbytes = itemsize;
  for (const std::uint64_t n : row_shape) nbytes *= n;
  return nbytes;
}

void Source::check() const {
  check_arrays(*this);
  std::vector<Checked> checked;
  checked.reserve(forms.size());
  for (const Form& form : forms) checked.emplace_back(*this, form);
  for (std::size_t part = 0; part < part_file.size(); ++part) check_part(*this, part, checked);
}

void Source::map() { mappings = std::make_shared<read::Mappings>(files.size()); }

}  // namespace solar
