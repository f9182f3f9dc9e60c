#include "reads.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <thread>

#include "read/batch.hpp"

using namespace reads;

TEST_CASE("a reader gives the rows asked for, in order, whatever the layout: through the page cache, past it, mapped") {
  for (const Backend backend : backends()) {
    for (unsigned seed = 0; seed < made::repeats(600U); ++seed) {
      CAPTURE(seed);
      const Folder folder;
      const made::Sample sample = made::random_source(folder, seed / 2);
      sample.source->bypass = seed % 2;
      if (seed % 4 >= 2) sample.source->map();
      sample.source->check();
      if (seed % 3 == 0) forget(*sample.source);
      made::Random random(seed);
      std::vector<std::int64_t> rows(random.upto(40));
      const auto all = static_cast<std::uint64_t>(sample.source->part_first.back());
      for (auto& row : rows) row = static_cast<std::int64_t>(random.upto(all - 1));  // with repeats
      Reader reader(1 + seed % 3, 8, random.one_in(2) ? 0 : 64, backend);
      const Values got = read_rows(reader, sample.source, rows);
      REQUIRE(got == wanted_rows(sample.rows, sample.source->row_nbytes(), rows));
      CHECK(reader.stats().rows == rows.size());
    }
  }
}

TEST_CASE("what needs no decoding is copied from a mapped file while it is warm, and refused once it is cut short") {
  const Folder folder;
  const auto source = made::contiguous(folder, 640, 5000);
  source->map();
  const Values all = contiguous_rows(*source);
  std::vector<std::int64_t> rows(640);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int64_t>(639 - i);
  Reader reader(1, 8, 0, Backend::automatic);  // another thread might only open the file when it is cut short
  for (int round = 0; round < 3; ++round) CHECK(read_rows(reader, source, rows) == wanted_rows(all, 5000, rows));
  CHECK(reader.stats().bytes_mapped + reader.stats().bytes_read == 3 * all.size());
  if (made::can_look(File(source->files[0].path))) CHECK(reader.stats().bytes_mapped > 0);
  REQUIRE(::truncate(source->files[0].path.c_str(), 1'000'000) == 0);
  Values out(all.size());
  CHECK(message_of(reader, reader.submit(source, rows, out), Kind::read).find("contiguous.h5") != std::string::npos);
  std::this_thread::sleep_for(120ms);  // for so long it may be taken for what it was
  const std::string message = message_of(reader, reader.submit(source, rows, out), Kind::read);
  CHECK(message.find("changed since it was inspected: size 3200512 -> 1000000") != std::string::npos);
}

TEST_CASE("many tickets from many threads all get their own rows") {
  const Folder folder;
  const auto source = made::contiguous(folder, 500, 3000);
  source->map();
  const Values all = contiguous_rows(*source);
  for (const Backend backend : backends()) {
    forget(*source);
    Reader reader(3, 16, 4096, backend);
    std::vector<std::jthread> callers;
    std::atomic<int> wrong{0};
    for (unsigned caller = 0; caller < 4; ++caller) {
      callers.emplace_back([&, caller] {
        made::Random random(caller);
        for (int round = 0; round < 30; ++round) {
          std::vector<std::vector<std::int64_t>> rows(4, std::vector<std::int64_t>(random.upto(made::repeats(64U))));
          std::vector<Values> out;
          std::vector<Reader::Ticket> tickets;
          for (auto& batch : rows) {
            for (auto& row : batch) row = static_cast<std::int64_t>(random.upto(499));
            out.emplace_back(batch.size() * 3000);
            tickets.push_back(reader.submit(source, batch, out.back()));
          }
          for (const std::size_t i : {2, 0, 3, 1}) {
            if (!reader.wait(tickets[i], 60s) || out[i] != wanted_rows(all, 3000, rows[i])) ++wrong;
          }
        }
      });
    }
    callers.clear();
    CHECK(wrong == 0);
  }
}

TEST_CASE("rows that lie close together are read in one request") {
  const Folder folder;
  const auto source = made::contiguous(folder, 100, 100);
  Reader reader(1, 1, 400, Backend::pread);
  const std::vector<std::int64_t> rows{10, 50, 14, 12};
  CHECK(read_rows(reader, source, rows) == wanted_rows(contiguous_rows(*source), 100, rows));
  CHECK(reader.stats().requests == 2);
  CHECK(reader.stats().bytes_read == 600);
}

TEST_CASE("rows that share a chunk decode it once") {
  const Folder folder;
  made::Sample sample;
  for (unsigned seed = 0; sample.source->forms.empty() || sample.source->forms[0].pipeline.empty() ||
                          sample.source->forms[0].chunk[0] < 3 || sample.source->part_chunks[1] < 4 ||
                          sample.source->chunk_mask[0] != 0 || !sample.source->chunk_index.empty();
       ++seed) {
    sample = made::random_source(folder, seed);
  }
  Reader reader(2, 1, 0, Backend::pread);
  const std::vector<std::int64_t> rows{0, 1, 2, 1, 0};
  CHECK(read_rows(reader, sample.source, rows) == wanted_rows(sample.rows, sample.source->row_nbytes(), rows));
  std::uint64_t tiles = 1;
  const Form& form = sample.source->forms[0];
  for (std::size_t d = 0; d < sample.source->row_shape.size(); ++d) {
    tiles *= (sample.source->row_shape[d] + form.chunk[d + 1] - 1) / form.chunk[d + 1];
  }
  CHECK(reader.stats().chunks_decoded <= tiles);
}

TEST_CASE("large rows are cut and come whole") {
  const Folder folder;
  const auto source = made::contiguous(folder, 3, 2'500'001);
  const Values all = contiguous_rows(*source);
  for (const Backend backend : backends()) {
    forget(*source);
    Reader reader(2, 8, 4096, backend);
    const std::vector<std::int64_t> rows{2, 0, 2, 1};
    CHECK(read_rows(reader, source, rows) == wanted_rows(all, 2'500'001, rows));
  }
}

TEST_CASE("the plan of a large batch is not kept, that of a small one is") {
  const Folder folder;
  const auto source = made::contiguous(folder, 100, 8);
  for (const std::size_t count : {100UL, 100'000UL}) {
    std::vector<std::int64_t> rows(count);
    for (std::size_t i = 0; i < count; ++i) rows[i] = static_cast<std::int64_t>(i * 7 % 100);
    Values out(count * 8);
    read::ReadPlan batch;
    Work work;
    work.source = source;
    work.rows = rows;
    work.out = out;
    batch.begin(work);
    batch.plan(2);
    const std::size_t kept = batch.rows.capacity();
    const auto large = batch.release_large();
    CHECK(large.rows.empty() == (count == 100));
    CHECK(batch.rows.capacity() == (count == 100 ? kept : 0));
    work.rows = work.rows.first(3);
    work.out = work.out.first(24);
    batch.begin(work);
    batch.plan(2);
    CHECK(batch.units() == 1);
  }
}

TEST_CASE("a row outside the source or an output of another size is refused at submit") {
  const Folder folder;
  const auto source = made::contiguous(folder, 10, 8);
  Reader reader(1, 1, 0, Backend::automatic);
  Values out(16);
  const std::vector<std::int64_t> beyond{0, 10}, negative{-1, 0}, three{1, 2, 3};
  CHECK_THROWS_AS(reader.submit(source, beyond, out), std::out_of_range);
  CHECK_THROWS_AS(reader.submit(source, negative, out), std::out_of_range);
  CHECK_THROWS_AS(reader.submit(source, three, out), std::invalid_argument);
  CHECK(read_rows(reader, source, {3, 4}).size() == 16);
}

TEST_CASE("an error belongs to its ticket and names file, dataset, sample and offset") {
  const Folder folder;
  const auto source = made::contiguous(folder, 10, 100);
  const Values all = contiguous_rows(*source);
  for (const Backend backend : backends()) {
    auto longer = std::make_shared<Source>(*source);  // promises more than the file has
    auto arrays = std::make_shared<made::Arrays>();
    arrays->part_file = {0};
    arrays->part_form = {0};
    arrays->part_first = {0, 20};
    arrays->part_chunks = {0, 1};
    arrays->offset = {512};
    arrays->nbytes = {2000};
    arrays->mask = {0};
    made::look(*longer, arrays);
    Reader reader(2, 4, 0, backend);
    Values good(200), bad(200);
    const std::vector<std::int64_t> here{3, 9}, gone{3, 15};
    const auto first = reader.submit(longer, gone, bad);
    const auto second = reader.submit(source, here, good);
    CHECK(reader.wait(second, 60s));
    CHECK(good == wanted_rows(all, 100, here));
    const std::string message = message_of(reader, first, Kind::read);
    CHECK(message.find(source->files[0].path + ": /x, sample 15, offset 2012: the file ends here") !=
          std::string::npos);
  }
}

TEST_CASE("a damaged chunk is a codec error that says where it lies") {
  const Folder folder;
  auto source = std::make_shared<Source>();
  source->name = "/x";
  source->files = {made::write_file(folder / "damaged.h5", Values(100))};
  source->itemsize = 4;
  source->row_shape = {5};
  source->forms.push_back({{2, 5}, Pipeline({{2, 0, {4}}}, 4, 40), {}});
  auto arrays = std::make_shared<made::Arrays>();
  arrays->part_file = {0};
  arrays->part_form = {0};
  arrays->part_first = {0, 4};
  arrays->part_chunks = {0, 2};
  arrays->offset = {10, 50};
  arrays->nbytes = {40, 36};  // the second is too short for its data
  arrays->mask = {0, 0};
  made::look(*source, arrays);
  source->check();
  Reader reader(1, 1, 0, Backend::automatic);
  Values out(20);
  const std::vector<std::int64_t> row{3};
  const std::string message = message_of(reader, reader.submit(source, row, out), Kind::codec);
  CHECK(message.find("damaged.h5: /x, sample 3, offset 50: ") != std::string::npos);
  CHECK(read_rows(reader, source, {1}) == Values(20));
}

TEST_CASE("a file is the same by its size and time, and by its inode or the time of its last change") {
  const Identity was{10, 1, 5, 7};
  CHECK(was.differs(was).empty());
  CHECK(was.differs({11, 1, 5, 7}) == "size 10 -> 11");
  CHECK(was.differs({10, 2, 5, 7}) == "modification time differs");
  CHECK(was.differs({10, 1, 6, 8}) == "another file has its place");
  CHECK(was.differs({10, 1, 6, 7}).empty());  // the file system has numbered it anew
  CHECK(was.differs({10, 1, 5, 8}).empty());  // its mode was changed, or it was renamed
  CHECK(Identity{10, 1, 0, 0}.differs({10, 1, 6, 8}).empty());  // of another machine's copy
}

TEST_CASE("another file of the same size and time is refused") {
  const Folder folder;
  const auto source = made::contiguous(folder, 10, 100);
  const std::string path = source->files[0].path;
  const auto time = std::filesystem::last_write_time(path);
  std::filesystem::rename(path, path + ".old");
  made::write_file(path, Values(1512));
  std::filesystem::last_write_time(path, time);
  CHECK_THROWS_WITH_AS(check_unchanged(source->files, true, 1), doctest::Contains("another file has its place"), Error);
  Values out(100);
  const std::vector<std::int64_t> row{1};
  Reader reader(1, 1, 0, Backend::automatic);
  const std::string message = message_of(reader, reader.submit(source, row, out), Kind::read);
  CHECK(message.find("changed since it was inspected: another file has its place") != std::string::npos);
}

TEST_CASE("a file that changed since it was inspected is refused, a missing one named") {
  const Folder folder;
  const auto source = made::contiguous(folder, 10, 100);
  Values out(100);
  const std::vector<std::int64_t> row{1};
  std::filesystem::resize_file(source->files[0].path, 1500);
  {
    Reader reader(1, 1, 0, Backend::automatic);
    const std::string message = message_of(reader, reader.submit(source, row, out), Kind::read);
    CHECK(message.find("changed since it was inspected: size 1512 -> 1500; make the H5Dataset again") != std::string::npos);
    CHECK(message.find("(/x, sample 1)") != std::string::npos);
  }
  std::filesystem::remove(source->files[0].path);
  Reader reader(1, 1, 0, Backend::automatic);
  const auto ticket = reader.submit(source, row, out);
  try {
    reader.wait(ticket, 60s);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.code() == ENOENT);
  }
}

TEST_CASE("more files than descriptors are read by closing those not used for longest") {
  const Folder folder;
  auto source = std::make_shared<Source>();
  auto arrays = std::make_shared<made::Arrays>();
  source->name = "/x";
  source->itemsize = 4;
  source->forms.push_back({{0}, {}, {}});
  constexpr std::int32_t files = 1500;
  Values wanted;
  for (std::int32_t i = 0; i < files; ++i) {
    Values bytes(4);
    std::memcpy(bytes.data(), &i, sizeof i);
    source->files.push_back(made::write_file(folder / std::to_string(i), bytes));
    wanted.insert(wanted.end(), bytes.begin(), bytes.end());
    arrays->part_file.push_back(i);
    arrays->part_form.push_back(0);
    arrays->part_first.push_back(i + 1);
    arrays->part_chunks.push_back(i + 1);
    arrays->offset.push_back(0);
    arrays->nbytes.push_back(4);
    arrays->mask.push_back(0);
  }
  made::look(*source, arrays);
  source->check();
  std::vector<std::int64_t> rows(files);
  for (std::int32_t i = 0; i < files; ++i) rows[static_cast<std::size_t>(i)] = i;
  Reader reader(2, 8, 0, Backend::automatic);
  for (int round = 0; round < 3; ++round) CHECK(read_rows(reader, source, rows) == wanted);
  const auto open = std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  CHECK(open <= 1024 + 100);
}

TEST_CASE("waiting ends: by its limit, for an unknown ticket, and by close") {
  const Folder folder;
  const auto source = made::contiguous(folder, 10, 8);
  Reader reader(1, 1, 0, Backend::automatic);
  Values out(8);
  const std::vector<std::int64_t> row{1};
  const auto ticket = reader.submit(source, row, out);
  CHECK(reader.wait(ticket, 60s));
  CHECK_THROWS_AS(reader.wait(ticket, 60s), std::invalid_argument);  // forgotten
  CHECK_THROWS_AS(reader.wait(77, 60s), std::invalid_argument);
  static_cast<void>(reader.submit(source, row, out));
  reader.close();
  reader.close();
  CHECK_THROWS_AS(reader.wait(ticket, 60s), Error);
  CHECK_THROWS_AS(reader.submit(source, row, out), Error);
}

TEST_CASE("close drops what has not begun and wakes who waits") {
  const Folder folder;
  const auto source = made::contiguous(folder, 200, 65536);
  for (const Backend backend : backends()) {
    forget(*source);
    std::vector<std::int64_t> rows(200);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int64_t>(i * 37 % 200);
    constexpr std::size_t nbytes = 200 * 65536;
    const auto outs = std::make_unique_for_overwrite<std::byte[]>(20 * nbytes);  // most of it is never touched
    Reader reader(2, 8, 0, backend);
    std::vector<Reader::Ticket> tickets;
    for (std::size_t i = 0; i < 20; ++i) {
      tickets.push_back(reader.submit(source, rows, MutableBytes(outs.get() + i * nbytes, nbytes)));
    }
    std::jthread waiter([&] {
      try {
        reader.wait(tickets.back(), 60s);
      } catch (const Error&) {
      }
    });
    reader.close();
  }
}

TEST_CASE("rows without bytes and batches without rows are there at once") {
  const Folder folder;
  const auto source = made::contiguous(folder, 10, 8);
  auto empty = std::make_shared<Source>(*source);
  empty->row_shape = {0};
  empty->forms = {{{0, 0}, {}, {}}};
  empty->check();
  Reader reader(1, 1, 0, Backend::automatic);
  CHECK(read_rows(reader, empty, {1, 2, 3}).empty());
  CHECK(read_rows(reader, source, {}).empty());
}

#ifndef __SANITIZE_THREAD__  // which does not survive a fork with threads
TEST_CASE("a reader used in a forked child says so, and goes quietly there") {
  const Folder folder;
  const auto source = made::contiguous(folder, 10, 8);
  auto reader = std::make_unique<Reader>(2, 4, 0, Backend::automatic);
  CHECK(read_rows(*reader, source, {3}).size() == 8);
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 1;
    Values out(8);
    const std::vector<std::int64_t> row{1};
    try {
      reader->submit(source, row, out);
    } catch (const Error& error) {
      code = std::string(error.what()).find("make a new Reader") == std::string::npos ? 2 : 0;
    }
    reader->close();
    reader.reset();
    Reader fresh(1, 1, 0, Backend::automatic);
    if (!fresh.wait(fresh.submit(source, row, out), 60s)) code = 3;
    ::_exit(code);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(read_rows(*reader, source, {4}).size() == 8);
}
#endif
