#include "solar/faults.hpp"

#include <unistd.h>

#include <cerrno>
#include <functional>
#include <thread>

#include "reads.hpp"

using namespace reads;
using faults::Call;
using faults::Fault;

namespace {

// Faults that end with the test.
Fault fault(Call call, int code, std::uint64_t times = UINT64_MAX) {
  Fault one;
  one.call = call;
  one.code = code;
  one.times = times;
  return one;
}

// What fails in io_uring is read again by a plain call: both meet the fault.
std::vector<Fault> both(int code, std::uint64_t times = UINT64_MAX) {
  return {fault(Call::read, code, times), fault(Call::ring, code, times)};
}

const std::vector<std::int64_t> rows{41, 3, 4, 17};

struct Outcome {
  Values out;
  std::string message;
  int code = 0;
  ReaderStats counts;
};

Outcome outcome(const std::shared_ptr<const Source>& source, Backend backend) {
  Reader reader(2, 8, 0, backend);
  Outcome found;
  found.out.assign(rows.size() * source->row_nbytes(), std::byte{0xAB});
  try {
    const bool here = reader.wait(reader.submit(source, rows, found.out), 60s, &found.counts);
    REQUIRE(here);
  } catch (const Error& error) {
    CHECK(error.kind() == Kind::read);
    found.message = error.what();
    found.code = error.code();
  }
  return found;
}

void each(const std::function<void(const std::shared_ptr<Source>&, Backend, const Values&)>& check) {
  const Folder folder;
  for (const Backend backend : backends()) {
    for (const double bypass : {0.0, 1.0}) {
      const auto source = made::contiguous(folder, 50, 3000);
      source->bypass = bypass;
      const Values wanted = wanted_rows(contiguous_rows(*source), 3000, rows);
      forget(*source);
      check(source, backend, wanted);
    }
  }
}

}  // namespace

TEST_CASE("what may pass is tried again and counted, and the bytes are right") {
  each([](const auto& source, Backend backend, const Values& wanted) {
    for (const int code : {EINTR, EAGAIN, EIO, ESTALE, ETIMEDOUT}) {
      const Injected injected(both(code, 2));
      const Outcome found = outcome(source, backend);
      CHECK(found.message.empty());
      CHECK(found.out == wanted);
      CHECK(found.counts.retries >= 2);
      CHECK(found.counts.retries == faults::met());
    }
  });
}

TEST_CASE("reads that bring less than was asked for are continued, and are no retries") {
  each([](const auto& source, Backend backend, const Values& wanted) {
    std::vector<Fault> faults = both(0);
    for (Fault& one : faults) one.most = 1000;
    const Injected injected(std::move(faults));
    const Outcome found = outcome(source, backend);
    CHECK(found.out == wanted);
    CHECK(found.counts.retries == 0);
    CHECK(faults::met() >= rows.size());
  });
}

TEST_CASE("what stays broken is one error that says where, what, and how often it was tried") {
  const Folder folder;
  const auto source = made::contiguous(folder, 50, 3000);
  for (const Backend backend : backends()) {
    const Injected injected(both(EIO));
    const Outcome found = outcome(source, backend);
    CHECK(found.code == EIO);
    CHECK(found.message.find(source->files[0].path + ": /x, sample ") == 0);
    CHECK(found.message.find("cannot be read: Input/output error (tried 7 times)") != std::string::npos);
  }
}

TEST_CASE("what will not pass is not tried again") {
  each([](const auto& source, Backend backend, const Values&) {
    const Injected injected(both(EACCES));
    const Outcome found = outcome(source, backend);
    CHECK(found.code == EACCES);
    CHECK(found.message.find("tried") == std::string::npos);
    CHECK(found.counts.retries == 0);
  });
}

TEST_CASE("a file that cannot be opened for a moment is opened then; one that is not there is an error") {
  each([](const auto& source, Backend backend, const Values& wanted) {
    for (const int code : {EMFILE, ESTALE, EIO}) {
      const Injected injected({fault(Call::open, code, 2)});
      const Outcome found = outcome(source, backend);
      CHECK(found.message.empty());
      CHECK(found.out == wanted);
    }
    const Injected injected({fault(Call::open, ENOENT)});
    const Outcome found = outcome(source, backend);
    CHECK(found.code == ENOENT);
    CHECK(found.message.find("cannot be opened: No such file or directory") != std::string::npos);
  });
}

TEST_CASE("where there is no memory the ticket ends with an error, and the Reader goes on") {
  const Folder folder;
  const auto source = std::make_shared<Source>();
  source->name = "/x";
  source->files = {made::write_file(folder / "chunks", Values(200'000, std::byte{5}))};
  source->itemsize = 1;
  source->row_shape = {100'000};
  source->forms.push_back({{2, 100'000}, Pipeline({{2, 0, {1}}}, 1, 200'000), {}});
  auto arrays = std::make_shared<made::Arrays>();
  arrays->part_file = arrays->part_form = {0};
  arrays->part_first = {0, 2};
  arrays->part_chunks = {0, 1};
  arrays->offset = {0};
  arrays->nbytes = {200'000};
  arrays->mask = {0};
  made::look(*source, arrays);
  source->check();
  for (const Backend backend : backends()) {
    Reader reader(1, 4, 0, backend);
    {
      Fault none = fault(Call::memory, ENOMEM);
      none.begin = 150'000;
      const Injected injected({none});
      Values out(100'000);
      const std::vector<std::int64_t> row{1};
      const std::string message = message_of(reader, reader.submit(source, row, out), Kind::read);
      CHECK(message.find("/x, sample 1, offset 0: no memory to read and decode it") != std::string::npos);
    }
    CHECK(read_rows(reader, source, {1}) == Values(100'000, std::byte{5}));
  }
}

TEST_CASE("a file that is written to while it is open is refused before long, and one that is replaced is still read") {
  const Folder folder;
  for (const Backend backend : backends()) {
    for (const bool mapped : {false, true}) {
      const auto source = made::contiguous(folder, 50, 3000);
      if (mapped) source->map();
      const Values all = contiguous_rows(*source);
      Reader reader(1, 4, 0, backend);
      CHECK(read_rows(reader, source, {3}) == wanted_rows(all, 3000, {3}));
      const std::string path = source->files[0].path;
      std::filesystem::rename(path, path + ".old");
      made::write_file(path, Values(200'000));
      std::this_thread::sleep_for(120ms);
      CHECK(read_rows(reader, source, {4}) == wanted_rows(all, 3000, {4}));
      std::ofstream(path + ".old", std::ios::in | std::ios::out).write("new", 3);
      std::this_thread::sleep_for(120ms);
      Values out(3000);
      const std::vector<std::int64_t> row{5};
      const std::string message = message_of(reader, reader.submit(source, row, out), Kind::read);
      CHECK(message.find("changed since it was inspected") != std::string::npos);
    }
  }
}

TEST_CASE("a read that waits to be tried again ends soon when nobody wants it") {
  const Folder folder;
  const auto source = made::contiguous(folder, 50, 3000);
  for (const Backend backend : backends()) {
    std::vector<Fault> faults = both(EIO);
    faults[0].begin = faults[1].begin = 512;
    const Injected injected(std::move(faults));
    Reader reader(1, 4, 0, backend);
    Values out(3000);
    const std::vector<std::int64_t> row{1};
    const auto ticket = reader.submit(source, row, out);
    while (faults::met() < 2) std::this_thread::sleep_for(1ms);
    reader.abandon(ticket);
    CHECK(message_of(reader, ticket, Kind::read) == "abandoned");
    CHECK(faults::met() < 7);
  }
}
