#include <algorithm>
#include <stdexcept>

#include "shared.hpp"

namespace solar {

struct Ledger::Impl {
  std::size_t entries, fields, most, entry_nbytes;
  std::unique_ptr<Mapped> ledger, line;
  Descriptor ledger_whole, ledger_reading, line_descriptor;

  serve::LedgerHead& head() const { return *reinterpret_cast<serve::LedgerHead*>(ledger->bytes()); }
  serve::JobCounters& at() const { return *reinterpret_cast<serve::JobCounters*>(line->bytes()); }
};

Ledger::Ledger(std::size_t entries, std::size_t fields, std::size_t most) : impl_(std::make_unique<Impl>()) {
  if (entries < 1 || entries > serve::most_entries || fields < 1)
    throw std::invalid_argument("a ledger of no such size");
  Impl& own = *impl_;
  own.entries = entries;
  own.fields = fields;
  own.most = most;
  own.entry_nbytes = serve::entry_nbytes(fields, most);
  own.ledger_whole = serve::sealed("solar-ledger", serve::page + entries * own.entry_nbytes, own.ledger, true);
  own.ledger_reading = serve::for_reading(own.ledger_whole);
  own.line_descriptor = serve::sealed("solar-line", serve::page, own.line, false);
  serve::LedgerHead& head = own.head();
  head.magic = serve::ledger_magic;
  head.entries = entries;
  head.entry_nbytes = own.entry_nbytes;
  head.gone.store(serve::never);
  own.at().magic = serve::line_magic;
}

Ledger::~Ledger() = default;

int Ledger::descriptor() const { return impl_->ledger_reading.get(); }
int Ledger::line_descriptor() const { return impl_->line_descriptor.get(); }

void Ledger::announce(std::uint64_t number, std::span<const std::uint64_t> offsets,
                      std::span<const std::uint32_t> places, std::uint64_t samples) {
  const Impl& own = *impl_;
  serve::LedgerHead& head = own.head();
  const bool held = !offsets.empty();
  if (number < head.there.load(std::memory_order_relaxed)) throw std::invalid_argument("this batch was announced");
  if ((held && offsets.size() != own.fields) || places.size() > own.most) {
    throw std::invalid_argument("an entry of another size than the ledger's");
  }
  std::byte* const at = own.ledger->bytes() + serve::page + number % own.entries * own.entry_nbytes;
  const serve::Entry entry{number, held ? samples : 0, static_cast<std::uint32_t>(places.size()), 0};
  std::memcpy(at, &entry, sizeof entry);
  if (held) {
    std::memcpy(at + sizeof entry, offsets.data(), offsets.size_bytes());
    std::memcpy(at + sizeof entry + offsets.size_bytes(), places.data(), places.size_bytes());
  }
  head.there.store(number + 1, std::memory_order_release);
  serve::wake(head.rings);
}

void Ledger::gone(std::uint64_t number) {
  serve::LedgerHead& head = impl_->head();
  if (number < head.gone.load(std::memory_order_relaxed)) head.gone.store(number, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // before anything is overwritten
  serve::wake(head.rings);
}

std::uint64_t Ledger::made() const { return impl_->at().made.load(std::memory_order_acquire); }
std::uint64_t Ledger::waits() const { return impl_->at().waits.load(std::memory_order_relaxed); }
std::chrono::nanoseconds Ledger::waited() const {
  const std::uint64_t told = impl_->at().waited.load(std::memory_order_relaxed);
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(told, serve::never / 2)));
}

}  // namespace solar
