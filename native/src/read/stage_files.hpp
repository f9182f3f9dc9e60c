// Open stage files of one thread; the one that was used longest ago is closed for another.
#pragma once

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "solar/stage.hpp"

namespace solar::read {

class StageFiles {
 public:
  // One for every eight files of the thread: a local file is soon open again.
  explicit StageFiles(std::size_t files) : limit_(std::clamp<std::size_t>(files / 8, 2, 16)) {}

  // Null where it cannot be had.
  std::shared_ptr<const File> open(const std::shared_ptr<Stage>& stage) {
    auto at = std::find_if(open_.begin(), open_.end(), [&](const auto& one) { return one.first == stage; });
    if (at == open_.end()) {
      auto file = stage->open();
      if (file == nullptr) return nullptr;
      if (open_.size() == limit_) open_.pop_back();
      open_.emplace_back(stage, std::move(file));
      at = std::prev(open_.end());
    }
    std::rotate(open_.begin(), at, at + 1);
    return open_.front().second;
  }

 private:
  std::size_t limit_;
  std::vector<std::pair<std::shared_ptr<Stage>, std::shared_ptr<const File>>> open_;  // last used first
};

}  // namespace solar::read
