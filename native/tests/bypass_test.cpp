#include "reads.hpp"

#include <algorithm>

using namespace reads;

namespace {

// The same rows read while the page cache holds the file, and when it does not. A system that is short of memory may
// forget the file at any time: what it held before and after, it held meanwhile, as reads past it fill nothing.
void check_held_and_forgotten(const std::shared_ptr<const Source>& source, Backend backend) {
  const File file(source->files[0].path, true);
  const std::uint64_t row_nbytes = source->row_nbytes(), page = 4096;
  const Values all = contiguous_rows(*source);  // through the page cache
  const std::vector<std::int64_t> rows{19, 0, 7, 8, 19, 12};
  const Values wanted = wanted_rows(all, row_nbytes, rows);
  Values memory(rows.size() * row_nbytes + page);  // a page's start, so that some are read straight into place
  const auto at = page - reinterpret_cast<std::uintptr_t>(memory.data()) % page;
  const MutableBytes out(memory.data() + at, rows.size() * row_nbytes);
  Reader reader(2, 8, 1000, backend);
  const auto held = [&] { return file.cached(0, file.nbytes()); };
  const auto check_read = [&] {
    std::fill(out.begin(), out.end(), std::byte{0});
    CHECK(reader.wait(reader.submit(source, rows, out), 60s));
    CHECK(Values(out.begin(), out.end()) == wanted);
  };
  const bool held_before = held();
  check_read();
  if (held_before && held()) CHECK(reader.stats().bypassed == 0);
  forget(*source);
  const bool held_still = held();
  check_read();
  if (file.alignment() != 0 && !held_still) CHECK(reader.stats().bypassed > 0);
}

}  // namespace

TEST_CASE("what the page cache does not hold is read past it, to the last byte of the file") {
  const Folder folder;
  for (const std::uint64_t row_nbytes : {100UL, 4096UL, 65536UL, 300'001UL}) {
    for (const std::uint64_t offset : {0UL, 512UL, 2048UL, 77UL}) {
      CAPTURE(row_nbytes);
      CAPTURE(offset);
      const auto source = made::contiguous(folder, 20, row_nbytes, offset);
      source->bypass = 1;
      for (const Backend backend : backends()) check_held_and_forgotten(source, backend);
    }
  }
}

TEST_CASE("a share of a file bypasses the page cache, the same each time") {
  const Folder folder;
  const auto source = made::contiguous(folder, 640, 65536);
  source->bypass = 0.25;
  std::vector<std::int64_t> rows(320);
  // Each is a request. The first row is not among them: from a read of a file's start on, the system may read ahead of
  // the others, and what the page cache holds is read from it.
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int64_t>(2 * i + 1);
  const File file(source->files[0].path, true);
  const auto held = [&](std::int64_t row) { return file.cached(static_cast<std::uint64_t>(row) * 65536, 65536); };
  for (int tries = 0; tries < 100; ++tries) {  // another thread's core may keep a page for a moment
    forget(*source);
    if (std::none_of(rows.begin(), rows.end(), held)) break;
  }
  if (file.alignment() == 0 || std::any_of(rows.begin(), rows.end(), held)) return;  // a file system in memory
  Reader reader(2, 16, 0, Backend::automatic);
  read_rows(reader, source, rows);
  const ReaderStats first = reader.stats();
  CHECK(first.bypassed > 0);
  CHECK(first.bypassed < first.requests);
  read_rows(reader, source, rows);
  CHECK(reader.stats().bypassed <= 2 * first.bypassed);
}

TEST_CASE("where no file can be opened for direct reads, the page cache serves") {
  const File file("/proc/version", true);
  CHECK(file.alignment() == 0);
  Values first(5);
  file.read(0, first);
  CHECK(std::string(reinterpret_cast<const char*>(first.data()), 5) == "Linux");
}

TEST_CASE("rows of files in memory can be asked for past the page cache") {
  if (!std::filesystem::is_directory("/dev/shm")) return;
  const Folder folder("/dev/shm");
  const auto source = made::contiguous(folder, 50, 3000);
  source->bypass = 1;
  for (const Backend backend : backends()) {
    Reader reader(2, 8, 0, backend);
    CHECK(read_rows(reader, source, {49, 3, 4}) == wanted_rows(contiguous_rows(*source), 3000, {49, 3, 4}));
  }
}

TEST_CASE("a damaged or shortened file is the same error past the page cache as through it") {
  const Folder folder;
  const auto source = made::contiguous(folder, 10, 100);
  auto longer = std::make_shared<Source>(*source);
  auto arrays = std::make_shared<made::Arrays>(*std::static_pointer_cast<const made::Arrays>(source->keep));
  arrays->part_first = {0, 100};
  arrays->nbytes = {10'000};
  made::look(*longer, arrays);
  longer->bypass = 1;
  for (const Backend backend : backends()) {
    forget(*source);
    Reader reader(1, 4, 0, backend);
    Values out(200);
    const std::vector<std::int64_t> gone{3, 90};
    const std::string message = message_of(reader, reader.submit(longer, gone, out), Kind::read);
    CHECK(message.find("/x, sample 90, offset 9512: the file ends here") != std::string::npos);
  }
}
