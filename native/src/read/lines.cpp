#include "lines.hpp"

#include <algorithm>

#include "grid.hpp"

namespace solar::read {

Lines::Lines(const Source& source) : source_(&source), first_{0} {
  for (const Form& form : source.forms) {
    rows_.push_back(form.chunk[0]);
    tiles_.push_back(Grid(source, form).tiles());
  }
  for (std::size_t part = 0; part + 1 < source.part_first.size(); ++part) {
    const auto rows = static_cast<std::uint64_t>(source.part_first[part + 1] - source.part_first[part]);
    const std::uint64_t of_line = rows_[static_cast<std::size_t>(source.part_form[part])];
    first_.push_back(first_.back() + (of_line == 0 ? (rows > 0 ? 1 : 0) : (rows + of_line - 1) / of_line));
  }
}

std::size_t Lines::part(std::int64_t row) const noexcept {
  const auto first = source_->part_first;
  return static_cast<std::size_t>(std::upper_bound(first.begin(), first.end(), row) - first.begin()) - 1;
}

std::size_t Lines::number(std::int64_t row) const noexcept {
  const std::size_t here = part(row);
  const std::uint64_t rows = rows_[static_cast<std::size_t>(source_->part_form[here])];
  return first_[here] + (rows == 0 ? 0 : static_cast<std::uint64_t>(row - source_->part_first[here]) / rows);
}

Line Lines::of(std::int64_t row) const noexcept {
  const std::size_t here = part(row);
  Line line{number(row), 0, 0};
  const std::uint64_t tiles = tiles_[static_cast<std::size_t>(source_->part_form[here])];
  const std::uint64_t index = (line.number - first_[here]) * tiles;  // of its first chunk in the part's grid
  const auto begin = static_cast<std::size_t>(source_->part_chunks[here]);
  const auto end = static_cast<std::size_t>(source_->part_chunks[here + 1]);
  if (source_->chunk_index.empty()) {
    line.begin = std::min(begin + index, end);
    line.end = std::min(begin + index + tiles, end);
    return line;
  }
  const auto all = source_->chunk_index.subspan(begin, end - begin);
  line.begin = begin + static_cast<std::size_t>(std::lower_bound(all.begin(), all.end(), index) - all.begin());
  line.end = begin + static_cast<std::size_t>(std::lower_bound(all.begin(), all.end(), index + tiles) - all.begin());
  return line;
}

std::size_t Lines::pages(const Line& line, std::uint64_t page_nbytes) const noexcept {
  std::size_t pages = 0;
  for (std::size_t k = line.begin; k < line.end; ++k) pages += pages_of(source_->chunk_nbytes[k], page_nbytes);
  return pages;
}

}  // namespace solar::read
