// What a Run asks the storage for: the same plans, carried out as far as the requests, with nothing read.
//
// A plan counts stretches of storage. Each is read in as many requests as the memory for it and its length ask for, which
// only what reads can say. Used by one thread.
#pragma once

#include <memory>

#include "solar/run.hpp"

namespace solar {

namespace run {
class PartRun;
}

struct Requests {
  std::uint64_t number = 0, bytes = 0;
  Requests& operator+=(const Requests& more) {
    number += more.number;
    bytes += more.bytes;
    return *this;
  }
};

// Those of one work for a Reader of so many threads, of files that lie far away; its `after` is moved on.
Requests requests_of(const Work& work, unsigned threads);

class Asked {
 public:
  // Of one part; `scratch` as in Run.
  Asked(Reader& reader, const Run::Part& part, std::uint64_t scratch);
  ~Asked();

  // The requests of its next epoch. Throws std::invalid_argument where arrays do not fit each other, as Run::append does.
  Requests epoch(std::vector<std::int64_t> sizes, Run::Epoch epoch);

 private:
  Requests requests_;
  std::uint64_t now_ = 0;  // the step
  std::unique_ptr<run::PartRun> part_;
};

}  // namespace solar
