// What the tests of a Reader share: which backends there are, and rows read and cut out by hand.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "made.hpp"
#include "solar/faults.hpp"
#include "solar/file.hpp"
#include "solar/reader.hpp"

namespace reads {

using namespace solar;
using namespace std::chrono_literals;
using made::Folder;
using made::Values;

// Faults for so long.
struct Injected {
  explicit Injected(std::vector<faults::Fault> faults) { faults::inject(std::move(faults)); }
  ~Injected() { faults::inject({}); }
  Injected(const Injected&) = delete;
  Injected& operator=(const Injected&) = delete;
};

inline bool has_uring() {
  try {
    Reader(1, 4, 0, Backend::uring);
    return true;
  } catch (const Error&) {
    return false;
  }
}

inline std::vector<Backend> backends() {
  std::vector<Backend> all{Backend::pread};
  if (has_uring()) all.push_back(Backend::uring);
  return all;
}

// The page cache forgets the files of a Source, so that its reads go to the storage.
inline void forget(const Source& source) {
  for (const SourceFile& wanted : source.files) {
    const File file(wanted.path);
    ::fdatasync(file.descriptor());
    ::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

inline Values read_rows(Reader& reader, const std::shared_ptr<const Source>& source, const std::vector<std::int64_t>& rows) {
  Values out(rows.size() * source->row_nbytes(), std::byte{0xAB});
  const auto ticket = reader.submit(source, rows, out);
  REQUIRE(reader.wait(ticket, 60s));
  return out;
}

inline Values wanted_rows(const Values& all, std::uint64_t row_nbytes, const std::vector<std::int64_t>& rows) {
  Values wanted;
  for (const std::int64_t row : rows) {
    const auto at = all.begin() + row * static_cast<std::int64_t>(row_nbytes);
    wanted.insert(wanted.end(), at, at + static_cast<std::int64_t>(row_nbytes));
  }
  return wanted;
}

inline Values contiguous_rows(const Source& source) {
  const File file(source.files[0].path);
  Values all(source.chunk_nbytes[0]);
  file.read(source.chunk_offset[0], all);
  return all;
}

inline std::string message_of(Reader& reader, Reader::Ticket ticket, Kind kind) {
  try {
    reader.wait(ticket, 60s);
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
  return "no error";
}

}  // namespace reads
