#include <algorithm>
#include <fcntl.h>
#include <linux/futex.h>
#include <numeric>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shared.hpp"

namespace solar {

namespace {

[[noreturn]] void refuse_shared(const char* what) {
  throw Error(Kind::read, std::string("what a service shares is not what it should be: ") + what);
}

// The size of what a descriptor stands for, which nobody can change.
std::size_t checked_size(int descriptor, bool read_only) {
  struct stat facts{};
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  const int wanted = serve::seals_of(read_only);
  if (seals < 0 || (seals & wanted) != wanted) refuse_shared("its size could change");
  if (::fstat(descriptor, &facts) != 0 || facts.st_size <= 0) refuse_shared("it has no size");
  return static_cast<std::size_t>(facts.st_size);
}

}  // namespace

struct Guest::Impl {
  Impl(int ledger_of, int line_of, int pool_of, int bell_of, std::vector<std::vector<std::uint64_t>> of,
       std::size_t up_to)
      : ledger(ledger_of, checked_size(ledger_of, true), false),
        line(line_of, checked_size(line_of, false), true),
        pool(pool_of, checked_size(pool_of, true), false),
        bell(::fcntl(bell_of, F_DUPFD_CLOEXEC, 0)),
        fields(std::move(of)),
        most(up_to) {
    if (bell.get() < 0) serve::fail_with("its bell cannot be kept");
    if (line.size() != serve::page || at().magic != serve::line_magic) refuse_shared("the line is none");
    if (ledger.size() < serve::page || head().magic != serve::ledger_magic) refuse_shared("the ledger is none");
    entries = head().entries;
    entry_nbytes = head().entry_nbytes;
    if (entries < 1 || entries > serve::most_entries || entry_nbytes != serve::entry_nbytes(fields.size(), most) ||
        ledger.size() != serve::page + entries * entry_nbytes) {
      refuse_shared("the ledger has another size");
    }
    for (const auto& one : fields) {
      std::uint64_t all = 0;
      for (const std::uint64_t nbytes : one) {
        if (__builtin_add_overflow(all, nbytes, &all)) refuse_shared("a sample of no such size");
      }
      sample_nbytes.push_back(all);
    }
  }

  serve::LedgerHead& head() const { return *reinterpret_cast<serve::LedgerHead*>(ledger.bytes()); }
  serve::JobCounters& at() const { return *reinterpret_cast<serve::JobCounters*>(line.bytes()); }
  void copy_field(std::size_t field, std::uint64_t offset, std::uint64_t samples, std::span<const std::uint32_t> places,
                  MutableBytes out) const;

  Mapped ledger, line, pool;
  Descriptor bell;
  std::vector<std::vector<std::uint64_t>> fields;
  std::vector<std::uint64_t> sample_nbytes;
  std::size_t most;
  std::uint64_t entries = 0, entry_nbytes = 0;
};

Guest::Guest(int ledger, int line, int pool, int bell, std::vector<std::vector<std::uint64_t>> fields, std::size_t most)
    : impl_(std::make_unique<Impl>(ledger, line, pool, bell, std::move(fields), most)) {}

Guest::~Guest() = default;

std::uint64_t Guest::there() const { return impl_->head().there.load(std::memory_order_acquire); }

bool Guest::is_gone(std::uint64_t number) const { return impl_->head().gone.load(std::memory_order_acquire) <= number; }

bool Guest::wait(std::uint64_t number, std::chrono::nanoseconds limit) const {
  const auto begin = std::chrono::steady_clock::now(), deadline = begin + limit;
  serve::LedgerHead& head = impl_->head();
  std::atomic<std::uint64_t>& waited = impl_->at().waited;
  while (true) {
    const std::uint32_t rung = head.rings.load(std::memory_order_acquire);
    const auto now = std::chrono::steady_clock::now();
    const auto left = deadline - now;
    const bool came = there() > number || is_gone(number);
    if (came || left <= left.zero()) {
      const auto own = std::chrono::duration_cast<std::chrono::nanoseconds>(now - begin);
      waited.fetch_add(static_cast<std::uint64_t>(own.count()), std::memory_order_relaxed);
      return came;
    }
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    const timespec until{static_cast<time_t>(seconds.count()), static_cast<long>((left - seconds).count())};
    ::syscall(SYS_futex, &head.rings, FUTEX_WAIT, rung, &until, nullptr, 0);
  }
}

// All that is copied may be overwritten meanwhile: nothing of it is believed before it was looked at, and that once.
Guest::Came Guest::copy(std::uint64_t number, std::size_t samples, std::span<const MutableBytes> out,
                        std::span<const std::size_t> each) const {
  const Impl& own = *impl_;
  if (!each.empty() && (each.size() != out.size() || std::reduce(each.begin(), each.end()) != samples)) {
    throw std::invalid_argument("each field has its own samples of a batch, and together they are all");
  }
  if (is_gone(number)) return Came::gone;
  if (there() <= number || there() - number > own.entries) return Came::not_held;
  const std::byte* const at = own.ledger.bytes() + serve::page + number % own.entries * own.entry_nbytes;
  std::vector<std::byte> told(own.entry_nbytes);
  std::memcpy(told.data(), at, told.size());
  serve::Entry entry{};
  std::memcpy(&entry, told.data(), sizeof entry);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (is_gone(number)) return Came::gone;
  if (entry.number != number || entry.samples == 0) return Came::not_held;
  if (entry.count != samples || samples > own.most || out.size() != own.fields.size())
    refuse_shared("a batch of another size");
  const auto* const offsets = reinterpret_cast<const std::uint64_t*>(told.data() + sizeof entry);
  const std::span places(reinterpret_cast<const std::uint32_t*>(offsets + own.fields.size()), samples);
  if (std::any_of(places.begin(), places.end(), [&](std::uint32_t one) { return one >= entry.samples; })) {
    refuse_shared("a place outside of its batch");
  }
  for (std::size_t field = 0, before = 0; field < out.size(); ++field) {
    const auto here = each.empty() ? places : places.subspan(before, each[field]);
    own.copy_field(field, offsets[field], entry.samples, here, out[field]);
    before += here.size();
  }
  std::atomic_thread_fence(std::memory_order_acquire);
  return is_gone(number) ? Came::gone : Came::here;
}

void Guest::Impl::copy_field(std::size_t field, std::uint64_t offset, std::uint64_t samples,
                             std::span<const std::uint32_t> places, MutableBytes out) const {
  std::uint64_t all = 0, end = 0;
  if (__builtin_mul_overflow(samples, sample_nbytes[field], &all) || __builtin_add_overflow(offset, all, &end) ||
      end > pool.size()) {
    refuse_shared("a batch outside of its memory");
  }
  if (out.size() < places.size() * sample_nbytes[field]) refuse_shared("a batch of another size");
  const std::byte* from = pool.bytes() + offset;
  std::byte* to = out.data();
  for (const std::uint64_t nbytes : fields[field]) {
    for (std::size_t begin = 0; begin < places.size();) {
      std::size_t next = begin + 1;  // neighbours are copied in one go
      while (next < places.size() && places[next] == places[next - 1] + 1) ++next;
      std::memcpy(to + begin * nbytes, from + places[begin] * nbytes, (next - begin) * nbytes);
      begin = next;
    }
    from += samples * nbytes;
    to += places.size() * nbytes;
  }
}

void Guest::wants(std::uint64_t number) const { impl_->at().waits.store(number + 1, std::memory_order_relaxed); }

void Guest::has_made(std::uint64_t number) const {
  serve::JobCounters& line = impl_->at();
  if (line.made.load(std::memory_order_relaxed) > number) return;
  line.waits.store(0, std::memory_order_relaxed);
  line.made.store(number + 1, std::memory_order_release);
  const std::uint64_t one = 1;
  static_cast<void>(::write(impl_->bell.get(), &one, sizeof one));  // a full bell has been heard
}

}  // namespace solar
