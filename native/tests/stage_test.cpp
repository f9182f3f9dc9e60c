// Stages: what is read from there is what was written, and what is not to be believed is read from afar.
#include "reads.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "solar/faults.hpp"
#include "solar/stage.hpp"

using namespace reads;

namespace {

constexpr std::uint64_t block = Stage::block_nbytes;
const std::string token = "0123456789abcdef";

std::uint64_t whole(std::uint64_t nbytes) { return (nbytes + block - 1) / block * block; }

struct Placed {
  std::string path;
  std::uint64_t far_nbytes, nbytes;
  std::uint64_t entry(std::uint64_t of_block) const { return whole(far_nbytes) + 4 * of_block; }
};

// An empty stage file, as io/reading/stage.py makes it, for a far file.
Placed placed(const SourceFile& far, const std::string& path) {
  const std::uint64_t entries = whole(whole(far.was.nbytes) / block * 4);
  const Placed made{path, far.was.nbytes, whole(far.was.nbytes) + entries + block};
  std::ofstream(path, std::ios::binary).write("", 0);
  REQUIRE(::truncate(path.c_str(), static_cast<off_t>(made.nbytes)) == 0);
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(made.nbytes - block + 16));
  file << token;
  return made;
}

// The same Source with new Stages over these files, as a new process has them.
std::shared_ptr<Source> staged(const Source& from, const std::vector<Placed>& files, std::uint64_t limit = UINT64_MAX) {
  auto made = std::make_shared<Source>(from);
  for (const Placed& one : files) {
    made->staged.push_back({std::make_shared<Stage>(one.path, token, one.far_nbytes), limit});
  }
  return made;
}

std::vector<Placed> places(const Folder& folder, const Source& source) {
  std::vector<Placed> found;
  for (std::size_t i = 0; i < source.files.size(); ++i) {
    found.push_back(placed(source.files[i], folder / ("stage" + std::to_string(i))));
  }
  return found;
}

std::uint64_t far_bytes(const Reader& reader) { return reader.stats().bytes_read - reader.stats().stage_bytes; }

std::vector<std::int64_t> all_rows(const Source& source) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(source.part_first.back()));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int64_t>(i);
  return rows;
}

void flip(const std::string& path, std::uint64_t offset) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(offset));
  const int before = file.get();
  file.seekp(static_cast<std::streamoff>(offset));
  file.put(static_cast<char>(before ^ 4));
}

}  // namespace

TEST_CASE("a staged source gives the rows asked for, whatever the layout, and reads none from afar again") {
  for (const Backend backend : backends()) {
    for (unsigned seed = 0; seed < made::repeats(300U); ++seed) {
      CAPTURE(seed);
      const Folder folder;
      const made::Sample sample = made::random_source(folder, seed);
      const std::vector<Placed> files = places(folder, *sample.source);
      const std::uint64_t row_nbytes = sample.source->row_nbytes();
      const std::vector<std::int64_t> every = all_rows(*sample.source);
      std::vector<std::int64_t> rows = every;
      std::shuffle(rows.begin(), rows.end(), std::mt19937(seed));
      for (int process = 0; process < 2; ++process) {
        const auto source = staged(*sample.source, files);
        source->bypass = seed % 3 == 0 ? 1 : 0;
        if (seed % 2 == 0) forget(*source);
        Reader reader(1 + seed % 3, 8, seed % 2 * 64, backend);
        for (int turn = 0; turn < 3; ++turn) {
          const std::uint64_t before = far_bytes(reader);
          const auto& asked = turn == 1 ? every : rows;
          REQUIRE(read_rows(reader, source, asked) == wanted_rows(sample.rows, row_nbytes, asked));
          if (process + turn > 0) CHECK(far_bytes(reader) == before);
        }
      }
    }
  }
}

TEST_CASE("only blocks before the limit are written, and others are read from afar each time") {
  const Folder folder;
  const auto plain = made::contiguous(folder, 64, 5000);
  const std::vector<Placed> files = places(folder, *plain);
  const auto source = staged(*plain, files, 20);
  const Values all = contiguous_rows(*plain);
  Reader reader(2, 8, 0, Backend::automatic);
  std::uint64_t before = 0;
  for (int turn = 0; turn < 3; ++turn) {
    for (const std::int64_t row : all_rows(*plain)) {
      REQUIRE(read_rows(reader, source, {row}) == wanted_rows(all, 5000, {row}));
    }
    if (turn == 2) CHECK(far_bytes(reader) - before == (64 - 16) * 5000);  // of row 16 a part lies before block 20
    before = far_bytes(reader);
  }
  struct stat facts {};
  REQUIRE(::stat(files[0].path.c_str(), &facts) == 0);
  CHECK(static_cast<std::uint64_t>(facts.st_blocks) * 512 <= 22 * block);  // these, their entries, and the last page
}

TEST_CASE("a block that is not what was written is dropped, and comes from afar") {
  const Folder folder;
  const auto plain = made::contiguous(folder, 64, 5000);
  const std::vector<Placed> files = places(folder, *plain);
  const Values all = contiguous_rows(*plain);
  const std::vector<std::int64_t> rows = all_rows(*plain);
  for (const Backend backend : backends()) {
    Reader reader(2, 8, 0, backend);
    read_rows(reader, staged(*plain, files), rows);
    flip(files[0].path, 100'000);
    flip(files[0].path, files[0].entry(40));
    const auto source = staged(*plain, files);
    const std::uint64_t before = far_bytes(reader);
    REQUIRE(read_rows(reader, source, rows) == wanted_rows(all, 5000, rows));
    CHECK(far_bytes(reader) > before);
    CHECK(source->staged[0].stage->dropped() == 2);
    read_rows(reader, source, rows);  // staged again
    const std::uint64_t after = far_bytes(reader);
    REQUIRE(read_rows(reader, source, rows) == wanted_rows(all, 5000, rows));
    CHECK(far_bytes(reader) == after);
  }
}

TEST_CASE("a stage that fails in any way costs no row") {
  const Folder folder;
  const auto plain = made::contiguous(folder, 64, 5000);
  const Values all = contiguous_rows(*plain);
  const std::vector<std::int64_t> rows = all_rows(*plain);
  const auto harm = [&](const std::string& path, int how) {
    if (how == 0) REQUIRE(::truncate(path.c_str(), 9999) == 0);
    if (how == 1) REQUIRE(::unlink(path.c_str()) == 0);
    if (how == 2) faults::inject({{.call = faults::Call::read, .path = "stage0", .code = EACCES}});
    if (how == 3) faults::inject({{.call = faults::Call::ring, .path = "stage0", .code = EACCES}});
    if (how == 4) faults::inject({{.call = faults::Call::open, .path = "stage0", .code = EACCES}});
    if (how == 5) faults::inject({{.call = faults::Call::write, .path = "stage0", .code = ENOSPC}});
    if (how == 6) faults::inject({{.call = faults::Call::read, .path = "stage0", .most = 777}});
    if (how == 7) faults::inject({{.call = faults::Call::read, .path = "contiguous.h5", .most = 777}});
    if (how == 8) flip(path, whole(plain->files[0].was.nbytes) + 2 * block + 3);
  };
  for (const Backend backend : backends()) {
    for (int how = 0; how < 9; ++how) {
      for (int filled = 0; filled < 3; ++filled) {
        CAPTURE(how);
        CAPTURE(filled);
        const std::vector<Placed> files = places(folder, *plain);
        Reader reader(2, 8, 0, backend);
        auto source = staged(*plain, files);
        for (int turn = 0; turn < filled; ++turn) read_rows(reader, source, rows);
        forget(*plain);
        harm(files[0].path, how);
        for (int turn = 0; turn < 2; ++turn) {
          CHECK(read_rows(reader, source, rows) == wanted_rows(all, 5000, rows));
          source = staged(*plain, files);
        }
        faults::inject({});
        ::unlink(files[0].path.c_str());
      }
    }
  }
}

TEST_CASE("a file in a stage file's place is neither read nor written to") {
  const Folder folder;
  const auto plain = made::contiguous(folder, 64, 5000);
  std::vector<Placed> files = places(folder, *plain);
  flip(files[0].path, files[0].nbytes - block + 16);  // its token
  const auto source = staged(*plain, files);
  Reader reader(2, 8, 0, Backend::automatic);
  const std::vector<std::int64_t> rows = all_rows(*plain);
  CHECK(read_rows(reader, source, rows) == wanted_rows(contiguous_rows(*plain), 5000, rows));
  CHECK(reader.stats().stage_written == 0);
  CHECK(source->staged[0].stage->lost() == ESTALE);
  CHECK(source->staged[0].stage->stopped() == ESTALE);
}

TEST_CASE("an error of the far file names sample and offset as it does without a stage") {
  const Folder folder;
  const auto plain = made::contiguous(folder, 64, 5000);
  const auto source = staged(*plain, places(folder, *plain));
  const Values all = contiguous_rows(*plain);
  faults::inject({{.call = faults::Call::read, .path = "contiguous.h5", .begin = 100'000, .end = 100'001, .code = EACCES}});
  Reader reader(1, 8, 0, Backend::pread);
  Values out(5000);
  const std::vector<std::int64_t> good{20}, bad{19};
  const std::string message = message_of(reader, reader.submit(source, bad, out), Kind::read);
  CHECK(message.find("/x, sample 19, offset 95512: cannot be read: Permission denied") != std::string::npos);
  CHECK(read_rows(reader, source, good) == wanted_rows(all, 5000, good));  // which shares its block
  faults::inject({});
}

TEST_CASE("threads and readers may fill one stage at once") {
  const Folder folder;
  const auto plain = made::contiguous(folder, 400, 3001);
  const std::vector<Placed> files = places(folder, *plain);
  const Values all = contiguous_rows(*plain);
  std::atomic<int> wrong{0};
  {
    const auto shared = staged(*plain, files);
    std::vector<std::jthread> callers;
    for (unsigned caller = 0; caller < 4; ++caller) {
      callers.emplace_back([&, caller] {
        const auto source = caller < 2 ? shared : staged(*plain, files);
        Reader reader(2, 8, 0, caller % 2 == 0 ? Backend::automatic : Backend::pread);
        std::vector<std::int64_t> rows = all_rows(*plain);
        for (unsigned turn = 0; turn < 3; ++turn) {
          std::shuffle(rows.begin(), rows.end(), std::mt19937(caller * 10 + turn));
          if (read_rows(reader, source, rows) != wanted_rows(all, 3001, rows)) ++wrong;
        }
      });
    }
  }
  CHECK(wrong == 0);
  Reader reader(2, 8, 0, Backend::automatic);
  const std::vector<std::int64_t> rows = all_rows(*plain);
  CHECK(read_rows(reader, staged(*plain, files), rows) == wanted_rows(all, 3001, rows));
  CHECK(far_bytes(reader) == 0);
}
