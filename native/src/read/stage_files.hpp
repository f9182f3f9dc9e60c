// A StageFiles keeps some stage files open for one thread, and closes the one used longest ago if there are too many.
//
// It belongs to a Worker and locks nothing. It shares ownership of the Stages and files that it keeps open, so a file
// that open() has returned stays usable after it was dropped here. Nothing throws but memory that is not to be had:
// where the file cannot be opened, the Stage notes why (Stage::lost), and rows come from the remote file.
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
