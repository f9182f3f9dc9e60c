#include "reads.hpp"

#include <sys/stat.h>

#include <functional>
#include <thread>

using namespace reads;

namespace {

// A named pipe in the place of a Source's file: who opens it waits for a writer, who reads it for bytes. So does who
// reads from storage that has gone away.
class Pipe {
 public:
  explicit Pipe(const Folder& folder) : source_(made::contiguous(folder, 10, 100)) {
    const std::string& path = source_->files[0].path;
    std::filesystem::remove(path);
    if (::mkfifo(path.c_str(), 0600) != 0) throw std::runtime_error(path);
    source_->files[0].was = identity_of(path);
  }
  ~Pipe() {
    if (end_ >= 0) ::close(end_);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  const std::shared_ptr<Source>& source() const { return source_; }
  // Lets it be opened.
  void open() {
    end_ = ::open(source_->files[0].path.c_str(), O_RDWR | O_CLOEXEC);
    REQUIRE(end_ >= 0);
  }
  void write(std::size_t nbytes) const {
    const Values bytes(nbytes, std::byte{7});
    REQUIRE(::write(end_, bytes.data(), nbytes) == static_cast<ssize_t>(nbytes));
  }
  std::string where(int sample) const {
    return source_->files[0].path + ": /x, sample " + std::to_string(sample) + ", offset " +
           std::to_string(512 + sample * 100);
  }

 private:
  std::shared_ptr<Source> source_;
  int end_ = -1;
};

// Whether the threads come to where this holds.
bool comes(const std::function<bool()>& holds) {
  for (int i = 0; i < 60'000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

}  // namespace

TEST_CASE("while a file cannot be opened its ticket says where it waits, as do those behind it, and close gives up") {
  const Folder folder, healthy;
  for (const Backend backend : backends()) {
    Pipe pipe(folder);
    const auto other = made::contiguous(healthy, 10, 100);
    Reader reader(1, 4, 0, backend);
    const std::vector<std::int64_t> rows{7, 3}, row{5};
    Values out(200), later(100);
    const auto ticket = reader.submit(pipe.source(), rows, out);
    const auto behind = reader.submit(other, row, later);
    CHECK(comes([&] { return reader.waiting_for(ticket) == pipe.where(3); }));
    CHECK_FALSE(reader.wait(ticket, 1ms));
    CHECK(reader.waiting_for(behind) == other->files[0].path + ": /x, sample 5, offset 1012 (not begun: the threads wait for " +
                                            pipe.where(3) + ")");
    CHECK(reader.waiting_for(12345).empty());
    CHECK_FALSE(reader.close(1ms));
    CHECK_THROWS_AS(reader.wait(ticket, 60s), Error);
    pipe.open();
    if (backend == Backend::uring) pipe.write(200);
    CHECK(reader.close());
    std::filesystem::remove(pipe.source()->files[0].path);
  }
}

TEST_CASE("a read the kernel does not end is named, is not over when it is given up, and ends when its bytes come") {
  if (!has_uring()) return;
  const Folder folder;
  Pipe pipe(folder);
  pipe.open();
  Reader reader(1, 4, 0, Backend::uring);
  const std::vector<std::int64_t> rows{7, 3};
  Values out(200), again(200);
  const auto ticket = reader.submit(pipe.source(), rows, out);
  CHECK(comes([&] { return reader.waiting_for(ticket) == pipe.where(3); }));
  const auto second = reader.submit(pipe.source(), rows, again);
  reader.abandon(ticket);
  CHECK_FALSE(reader.wait(ticket, 1ms));
  CHECK_FALSE(reader.close(1ms));
  pipe.write(400);
  CHECK(reader.close());
  CHECK_THROWS_AS(reader.wait(second, 60s), Error);
}

TEST_CASE("what a ticket waits for can be asked while it is planned, read and ended") {
  const Folder folder;
  const auto source = made::contiguous(folder, 64, 1000);
  for (const Backend backend : backends()) {
    forget(*source);
    Reader reader(3, 16, 0, backend);
    made::Random random(5);
    std::vector<std::int64_t> rows(64);
    for (int i = 0; i < 300; ++i) {
      for (auto& row : rows) row = static_cast<std::int64_t>(random.upto(63));
      Values out(64 * 1000);
      const auto ticket = reader.submit(source, rows, out);
      const std::string found = reader.waiting_for(ticket);
      if (!found.empty()) CHECK(found.find(source->files[0].path + ": /x, sample ") == 0);
      CHECK(reader.wait(ticket, 60s));
      CHECK(reader.waiting_for(ticket).empty());
    }
  }
}
