#include "solar/run.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "codec/format.hpp"
#include "digest.hpp"
#include "impl.hpp"
#include "read/grid.hpp"
#include "signals.hpp"

namespace solar {

namespace {

constexpr std::size_t node_page = 4096;  // at which each part's memory begins

// Whether each row of the source is a run of numbers of this type in its file, or in a chunk.
bool may_pack(const Source& source, Number number) {
  const auto alone = [&source](const Form& form) {
    const read::Grid grid(source, form);
    return grid.tiles() == 1 && grid.chunk_row_nbytes() == source.row_nbytes();
  };
  return codec::itemsize_of(number) == source.itemsize && std::all_of(source.forms.begin(), source.forms.end(), alone);
}

}  // namespace

void Run::Impl::check_process() const {
  if (::getpid() == process) return;
  throw Error(Kind::read, "this Run belongs to process " + std::to_string(process) +
                              " and has no thread in this one, forked from it; make a new Run here");
}

Run::Run(Reader& reader, std::shared_ptr<MemoryPool> pool, std::size_t staged, std::uint64_t scratch,
         std::shared_ptr<Node> node, std::size_t lends, bool passed_on)
    : impl_(std::make_unique<Impl>(reader, std::move(pool), std::max<std::size_t>(1, staged), scratch, std::move(node),
                                   lends, passed_on)) {}

Run::~Run() {
  if (impl_ == nullptr) return;
  if (::getpid() != impl_->process || !close(std::chrono::nanoseconds(impl_->given_up ? 0 : longest_wait.count()))) {
    static_cast<void>(impl_.release());
  }
}

std::size_t Run::part(const Part& part) {
  impl_->check_process();
  if (impl_->begun) throw std::logic_error("a part is added before the first epoch");
  const std::uint64_t slots = part.extents == nullptr ? 1 : part.extents->slots();
  std::uint64_t nbytes = 0;
  if (__builtin_mul_overflow(slots, part.source->row_nbytes(), &nbytes) || nbytes > INT64_MAX) {
    throw std::invalid_argument(part.source->name + ": a sample of " + std::to_string(slots) + " rows");
  }
  if (part.extents != nullptr) part.extents->check(part.source->part_first.back());
  if (part.boxes != nullptr) part.boxes->check(*part.source);
  if (part.boxes != nullptr && part.extents != nullptr) {
    throw std::invalid_argument(part.source->name + ": boxes are cut out of blocks alone");
  }
  if (part.pack &&
      (part.stored || part.page_nbytes < sizeof(std::uint64_t) || !may_pack(*part.source, part.pack->number))) {
    throw std::invalid_argument(part.source->name +
                                ": rows are packed where each is a run of such numbers");
  }
  if (!part.stored && !part.pack && part.pages > 0 && part.page_nbytes != part.source->row_nbytes()) {
    throw std::invalid_argument(part.source->name +
                                ": a page is a row, unless lines of chunks are kept, or rows packed");
  }
  nbytes = part.boxes == nullptr ? nbytes : part.boxes->nbytes(part.source->itemsize);
  for (const PartRun& other : impl_->parts) {
    if (other.part().field == part.field && other.sample_nbytes() != nbytes) {
      throw std::invalid_argument(part.source->name + ": samples of another size than the field's other parts");
    }
  }
  std::byte* memory = nullptr;
  if (impl_->node != nullptr) {
    const MutableBytes all = impl_->node->memory();
    const std::size_t wanted = (part.pages * part.page_nbytes + node_page - 1) / node_page * node_page;
    if (wanted > all.size() - impl_->taken) {
      throw Error(Kind::plan, part.source->name + ": the node's memory of " + std::to_string(all.size()) +
                                  " bytes has no room for " + std::to_string(wanted));
    }
    memory = all.data() + std::exchange(impl_->taken, impl_->taken + wanted);
  }
  impl_->parts.emplace_back(impl_->reader, part, impl_->scratch, impl_->node.get(), memory);
  impl_->fields = std::max(impl_->fields, part.field + 1);
  return impl_->parts.size() - 1;
}

void Run::append(std::vector<std::int64_t> sizes, std::vector<Epoch> parts, std::shared_ptr<const void> keep) {
  impl_->check_process();
  if (parts.size() != impl_->parts.size()) {
    throw std::invalid_argument(std::to_string(parts.size()) + " parts of an epoch, for a Run of " +
                                std::to_string(impl_->parts.size()));
  }
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const Part& part = impl_->parts[p].part();
    std::size_t of_field = 0;
    for (const PartRun& other : impl_->parts) of_field += other.part().field == part.field;
    run::check(parts[p], part, sizes, of_field == 1, impl_->node != nullptr);
    if (parts[p].afresh && impl_->node != nullptr) throw std::invalid_argument("ranks of a node plan nothing afresh");
  }
  const std::uint64_t digest = impl_->node == nullptr ? 0 : run::digest(sizes.size(), impl_->parts, parts);
  auto made = std::make_shared<Planned>(Planned{std::move(sizes), std::move(parts), std::move(keep), digest});
  for (Epoch& epoch : made->parts) epoch.sizes = made->sizes;
  std::shared_ptr<const Planned> refused;  // let go outside the lock
  const std::lock_guard lock(impl_->mutex);
  if (impl_->closing) throw Error(Kind::read, "the Run is closed");
  impl_->planned.push_back(std::move(made));
  impl_->changed.notify_all();
  if (std::exchange(impl_->begun, true)) return;
  try {
    impl_->ended = false;
    const FatalSignalsOnly signals;
    impl_->thread.emplace([impl = impl_.get()] { impl->conduct(); });
  } catch (...) {
    impl_->ended = true;
    impl_->begun = false;  // the next epoch tries again, and this one is not part of it
    refused = std::move(impl_->planned.back());
    impl_->planned.pop_back();
    throw;
  }
}

bool Run::take(std::chrono::nanoseconds limit, Batch& batch) {
  impl_->check_process();
  const auto deadline = std::chrono::steady_clock::now() + std::min(limit, longest_wait);
  Impl::Making made;
  // Whether to wake the Run's thread. It is woken once, and only after the mutex is free, for it would wait for that.
  bool wake = false;
  {
    std::unique_lock lock(impl_->mutex);
    if (!impl_->doors->passed_on) impl_->doors->kept = impl_->doors->lent;
    const auto there = [this] { return !impl_->ready.empty() || impl_->closing || impl_->failed != nullptr; };
    if (!there()) {
      if (impl_->doors->awaited && impl_->has_room()) impl_->changed.notify_all();
      if (!impl_->changed.wait_until(lock, deadline, there)) return false;
    }
    if (impl_->ready.empty()) {
      if (impl_->failed != nullptr) std::rethrow_exception(impl_->failed);
      throw Error(Kind::read, "the Run is closed");
    }
    made = std::move(impl_->ready.front());
    impl_->ready.pop_front();
    made.loan->begin();
    wake = impl_->doors->awaited && impl_->has_room();
  }
  if (wake) impl_->changed.notify_all();
  if (made.error != nullptr) std::rethrow_exception(made.error);
  batch = std::move(made.batch);
  return true;
}

void Run::ask(std::uint64_t number) {
  if (::getpid() != impl_->process) return;
  const std::lock_guard lock(impl_->mutex);
  Doors& doors = *impl_->doors;
  if (doors.taken != number) return;  // what was taken and not passed on yet is among those lent
  // What is kept once may just be on its way back; what is kept twice is what this one has.
  doors.kept = std::min(doors.lent, std::exchange(doors.asked, doors.lent));
  doors.wanted = doors.awaited && impl_->ready.empty();
  if (doors.awaited && impl_->has_room()) impl_->changed.notify_all();
}

std::string Run::waiting_for() const {
  if (::getpid() != impl_->process) return "";
  std::vector<Reader::Ticket> tickets;
  std::string ranks;
  {
    const std::lock_guard lock(impl_->mutex);
    tickets = impl_->waited_for;
    ranks = impl_->awaited;
  }
  for (const Reader::Ticket ticket : tickets) {
    if (std::string found = impl_->reader.waiting_for(ticket); !found.empty()) return found;
  }
  return ranks;
}

Reader::Ticket Run::due() const {
  if (::getpid() != impl_->process) return 0;
  const std::lock_guard lock(impl_->mutex);
  return impl_->due;
}

RunStats Run::stats() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->told;
}

std::vector<std::shared_ptr<const void>> Run::retired() {
  const std::lock_guard lock(impl_->mutex);
  return std::exchange(impl_->over, {});
}

bool Run::close(std::chrono::nanoseconds limit) {
  if (::getpid() != impl_->process) return true;
  const auto deadline = std::chrono::steady_clock::now() + std::min(limit, longest_wait);
  {
    std::unique_lock lock(impl_->mutex);
    impl_->closing = true;
    impl_->changed.notify_all();
    impl_->given_up = !impl_->changed.wait_until(lock, deadline, [this] { return impl_->ended; });
    if (impl_->given_up) return false;
  }
  const std::lock_guard lock(impl_->joining);
  impl_->thread.reset();
  return true;
}

}  // namespace solar
