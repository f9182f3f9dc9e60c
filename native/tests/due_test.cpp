// Plans that use or drop rows before they are due: refused, for what is still written to is not to be read.
#include <unistd.h>

#include "plans.hpp"
#include "solar/run.hpp"

using namespace reads;

namespace {

// What a run of this plan says instead of giving a batch.
std::string refusal(Run& run, const Made& made) {
  append(run, made);
  Run::Batch batch;
  try {
    while (run.take(60s, batch)) {
    }
  } catch (const Error& error) {
    CHECK(error.kind() == Kind::plan);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a plan that uses a row before it is due ends in an error, however it is kept") {
  const Folder folder;
  const auto source = made::contiguous(folder, 100, 1000);
  Reader reader(2, 8, 64, Backend::automatic);
  for (const bool stored : {true, false}) {
    for (const bool from_start : {true, false}) {
      CAPTURE(stored);
      CAPTURE(from_start);
      Run run(reader, MemoryPool::make(1 << 20), 1, 1 << 20);
      run.part({source, 0, 200, stored ? 500U : 1000U, stored, false, 2, 0});
      Made made;
      made.rows = {7, 7};
      made.starts = {0, 1, 2};
      made.sizes = {1, 1};
      made.last = {0, 0};
      (from_start ? made.start : made.loads) = {7};
      if (from_start) made.start_ends = {1}, made.start_due = {2};
      made.ends = {0, from_start ? 0 : 1, from_start ? 0 : 1};
      CHECK(refusal(run, made) == "/x: the plan uses sample 7 before the step that it is read for");
    }
  }
}

TEST_CASE("a plan that drops what another rank uses before it is due ends in an error") {
  const Folder folder;
  const auto source = made::contiguous(folder, 100, 1000);
  Reader reader(2, 8, 64, Backend::automatic);
  const std::vector<std::string> names{"alone"};
  const int descriptor = Node::make(1, 1 << 20);
  const auto node = std::make_shared<Node>(descriptor, 0, names, 1 << 20);
  ::close(descriptor);
  Run run(reader, MemoryPool::make(1 << 20), 1, 1 << 20, node);
  run.part({source, 0, 2, 1000, false, false, 2, 0});
  Made made;
  made.rows = {7};
  made.positions = {-1};
  made.starts = {0, 1};
  made.sizes = {1};
  made.last = {1};
  made.start = {7};
  made.start_ends = {1};
  made.start_due = {2};
  made.ends = {0, 0};
  CHECK(refusal(run, made) == "/x: the plan drops sample 7 before the step that it is read for");
}
