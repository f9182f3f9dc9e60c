// Fuzzes plans: whatever epochs a Run is given, it refuses them, or ends them in batches of the right rows or an Error.
//
// The input: the part's settings, then up to three epochs, each array with a length and numbers of its own. Rows come
// from two files in memory, one contiguous and one of shuffled chunks, whose bytes are known. A batch that does not
// come within its time is a wait without an end.
#include <algorithm>
#include <map>

#include <sys/stat.h>

#include "fuzz.hpp"
#include "solar/run.hpp"

namespace {

using namespace solar;

constexpr std::int64_t rows_of_source = 12, rows_of_chunk = 4, row_nbytes = 8;
constexpr std::chrono::seconds long_enough(20);

struct Arrays {
  std::vector<std::int64_t> sizes, starts, ends, start_ends, start_due;
  std::vector<std::int32_t> rows, positions, loads, start;
  std::vector<std::uint8_t> last;
};

std::byte wanted(std::int64_t row, std::int64_t at) { return static_cast<std::byte>(row * 20 + at); }

std::vector<std::byte> contents(bool shuffled) {
  std::vector<std::byte> all(rows_of_source * row_nbytes);
  for (std::int64_t row = 0; row < rows_of_source; ++row)
    for (std::int64_t at = 0; at < row_nbytes; ++at) {
      const std::int64_t chunk = row / rows_of_chunk * rows_of_chunk, in_chunk = row % rows_of_chunk;
      const std::int64_t place = shuffled ? chunk * row_nbytes + at * rows_of_chunk + in_chunk : row * row_nbytes + at;
      all[static_cast<std::size_t>(place)] = wanted(row, at);
    }
  return all;
}

// Rows of one element of eight bytes each.
std::shared_ptr<const Source> source_of(const fuzz::MemoryFile& file, bool shuffled) {
  file.write(contents(shuffled));
  struct stat status {};
  if (::stat(file.path().c_str(), &status) != 0) throw std::runtime_error("no file in memory");
  auto source = std::make_shared<Source>();
  source->name = "/x";
  source->itemsize = row_nbytes;
  source->files = {{file.path(), static_cast<std::uint64_t>(status.st_size),
                    std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec}};
  Form form;
  form.chunk = {shuffled ? std::uint64_t{rows_of_chunk} : 0};
  if (shuffled) form.pipeline = Pipeline({{2, 0, {row_nbytes}}}, row_nbytes, rows_of_chunk * row_nbytes);
  source->forms = {form};
  static constexpr std::int32_t none[] = {0};
  static constexpr std::int64_t first[] = {0, rows_of_source}, one[] = {0, 1}, three[] = {0, 3};
  static constexpr std::uint64_t offsets[] = {0, 32, 64}, nbytes[] = {32, 32, 32}, whole[] = {96};
  static constexpr std::uint32_t masks[] = {0, 0, 0};
  source->part_file = source->part_form = none;
  source->part_first = first;
  source->part_chunks = shuffled ? std::span<const std::int64_t>(three) : one;
  source->chunk_offset = std::span(offsets).first(shuffled ? 3 : 1);
  source->chunk_nbytes = shuffled ? std::span<const std::uint64_t>(nbytes) : whole;
  source->chunk_mask = std::span(masks).first(shuffled ? 3 : 1);
  source->check();
  return source;
}

template <class T>
std::vector<T> numbers(fuzz::Input& input, std::size_t count, std::size_t most) {
  std::vector<T> all(count);
  for (T& one : all) one = static_cast<T>(input.upto(most));
  if (count > 0 && input.upto(15) == 0) all[input.upto(count - 1)] = static_cast<T>(input.take<std::uint64_t>());
  return all;
}

// Ends that go up to `all`, mostly.
std::vector<std::int64_t> ends(fuzz::Input& input, std::size_t count, std::size_t all) {
  std::vector<std::int64_t> made = numbers<std::int64_t>(input, count, all);
  if (input.upto(15) == 0) return made;
  std::sort(made.begin(), made.end());
  if (!made.empty()) made.back() = static_cast<std::int64_t>(all);
  return made;
}

Arrays arrays_of(fuzz::Input& input) {
  Arrays made;
  const std::size_t steps = input.upto(4), uses = input.upto(12), loads = input.upto(12), start = input.upto(12);
  made.rows = numbers<std::int32_t>(input, uses, rows_of_source - 1);
  made.starts = ends(input, steps + 1, uses);
  if (input.upto(15) != 0) made.starts[0] = 0;
  for (std::size_t step = 0; step < steps; ++step)
    made.sizes.push_back(input.upto(3) == 0 ? 12 : made.starts[step + 1] - made.starts[step]);
  if (input.flag()) made.positions = numbers<std::int32_t>(input, uses, 11);
  made.last = numbers<std::uint8_t>(input, uses, 1);
  made.loads = numbers<std::int32_t>(input, loads, rows_of_source - 1);
  made.ends = ends(input, steps + 1, loads);
  made.start = numbers<std::int32_t>(input, start, rows_of_source - 1);
  const std::size_t groups = start == 0 ? 0 : 1 + input.upto(2);
  made.start_ends = ends(input, groups, start);
  made.start_due = numbers<std::int64_t>(input, groups, 3);
  return made;
}

Run::Epoch epoch_of(const Arrays& made) {
  Run::Epoch epoch;
  epoch.rows = made.rows;
  epoch.positions = made.positions;
  epoch.starts = made.starts;
  epoch.last = made.last;
  epoch.loads = made.loads;
  epoch.ends = made.ends;
  epoch.start = made.start;
  epoch.start_ends = made.start_ends;
  epoch.start_due = made.start_due;
  return epoch;
}

// The rows are where they belong; nothing is promised of a batch with two rows in one place.
void check_batch(const Arrays& made, std::size_t step, Bytes batch) {
  std::map<std::int64_t, std::int64_t> row_at;
  for (std::int64_t use = made.starts[step]; use < made.starts[step + 1]; ++use) {
    const auto i = static_cast<std::size_t>(use);
    const std::int64_t position = made.positions.empty() ? use - made.starts[step] : made.positions[i];
    if (!row_at.emplace(position, made.rows[i]).second) return;
  }
  for (const auto& [position, row] : row_at)
    for (std::int64_t byte = 0; byte < row_nbytes; ++byte)
      fuzz::require(batch[static_cast<std::size_t>(position * row_nbytes + byte)] == wanted(row, byte),
                    "a batch has another row");
}

// False when the plan has failed, and nothing more will come.
bool take(Run& run, const Arrays& made, std::size_t step) {
  Run::Batch batch;
  try {
    fuzz::require(run.take(long_enough, batch), "a batch does not come");
  } catch (const std::exception&) {
    return false;
  }
  check_batch(made, step, batch.fields.at(0)->bytes());
  return true;
}

void carry_out(fuzz::Input& input, Reader& reader, const std::shared_ptr<const Source>& source) {
  Run run(reader, MemoryPool::make(1 << 16), input.upto(3), input.flag() ? 1 << 16 : input.upto(64));
  const bool stored = input.flag();
  run.part({source, 0, input.upto(12), stored ? 1 + input.upto(63) : row_nbytes, stored, input.flag(), 0,
            input.upto(100)});
  std::vector<std::shared_ptr<const Arrays>> epochs;
  for (std::size_t left = 1 + input.upto(2); left > 0; --left) {
    auto made = std::make_shared<const Arrays>(arrays_of(input));
    run.append(made->sizes, {epoch_of(*made)}, made);
    epochs.push_back(made);
  }
  for (const auto& made : epochs)
    for (std::size_t step = 0; step < made->sizes.size(); ++step)
      if (!take(run, *made, step)) return;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Reader reader(1, 4, 0, Backend::pread);
  static const fuzz::MemoryFile files[2];
  static const std::shared_ptr<const Source> sources[] = {source_of(files[0], false), source_of(files[1], true)};
  fuzz::Input input(data, size);
  try {
    carry_out(input, reader, sources[input.upto(1)]);
  } catch (const std::invalid_argument&) {
  } catch (const Error&) {
  }
  return 0;
}
