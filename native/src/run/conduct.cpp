// The thread of a Run, which goes from step to step.
#include <algorithm>
#include <new>
#include <utility>

#include "digest.hpp"
#include "impl.hpp"

namespace solar {

namespace {

constexpr std::chrono::nanoseconds closing_check = std::chrono::milliseconds(50);  // between looks at whether it closes
constexpr std::chrono::nanoseconds fed_glance = std::chrono::milliseconds(2);  // and at whether more is to be asked for

std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

}  // namespace

void Run::Impl::conduct() {
  ::pthread_setname_np(::pthread_self(), "solar-run");
  try {
    while (auto epoch = next()) carry_out(std::move(epoch));
  } catch (const std::exception& error) {
    tell_node(error);
    const std::lock_guard lock(mutex);
    failed = std::current_exception();
    changed.notify_all();
  }
  give_up();
  if (node != nullptr) node->leave();
  const std::lock_guard lock(mutex);
  ended = true;
  changed.notify_all();
}

// The others raise it too. Without memory for the words they hear that this rank has gone.
void Run::Impl::tell_node(const std::exception& error) noexcept {
  if (node == nullptr) return;
  const auto* const own = dynamic_cast<const Error*>(&error);
  try {
    node->fail(own != nullptr ? *own : Error(Kind::read, error.what()));
  } catch (const std::bad_alloc&) {  // node->leave() follows
  }
}

std::shared_ptr<const Planned> Run::Impl::next() {
  std::unique_lock lock(mutex);
  changed.wait(lock, [this] { return closing || !planned.empty(); });
  return closing ? nullptr : planned.front();
}

// The epoch goes back to whoever appended it: its arrays are not this thread's to destroy.
void Run::Impl::carry_out(std::shared_ptr<const Planned> epoch) {
  if (!begin(*epoch)) return;
  const auto settled = [this](Reader::Ticket ticket, ReaderStats& of) { return settle(ticket, of); };
  for (std::size_t p = 0; p < parts.size(); ++p) {
    if (!parts[p].begin_afresh(epoch->parts[p], settled, done, counts)) return;
  }
  start(*epoch, true);
  std::uint64_t lead = 0;
  for (const PartRun& part : parts) lead = std::max(lead, part.part().direct ? part.part().ahead : 0);
  const std::size_t steps = epoch->sizes.size();
  std::size_t prepared = 0;
  for (std::size_t step = 0; step < steps; ++step) {
    if (!wait_for_room()) break;
    for (; prepared < std::min<std::uint64_t>(steps, step + lead + 1); ++prepared) {
      // It joins the list before it is prepared: if something goes wrong, what may be read to by then is known.
      making.emplace_back();
      prepare(*epoch, prepared, making.back());
    }
    if (!make(*epoch, step, making.front())) break;
    for (std::size_t p = 0; p < parts.size(); ++p) parts[p].drop(epoch->parts[p], step);
    if (node != nullptr) node->tell(Node::Count::made, now + 1);
    Making made = std::move(making.front());
    making.pop_front();
    publish(std::move(made));
    issue(*epoch, step);
    ++now;
  }
  for (PartRun& part : parts) part.feed_all(UINT64_MAX, settled, done, counts);  // of arrays that go now
  const std::lock_guard lock(mutex);
  if (closing) return;  // it stays with the others that were planned
  over.emplace_back();
  over.back() = std::move(epoch);
  planned.pop_front();
}

// All ranks of the node carry out the same plans. False when it closes.
bool Run::Impl::begin(const Planned& epoch) {
  if (node == nullptr) return true;
  chain = run::chained(chain, epoch.digest);
  const bool all =
      wait_for_ranks(Node::Count::begun, epochs + 1, [this] { return node->begin(epochs, chain, closing_check); });
  ++epochs;
  return all;
}

// Groups that are needed first are read first: those of the first step, and when they have come, all others, which would
// take the storage's time from them. Not of what is read straight into batches, for more than one step is prepared there.
void Run::Impl::start(const Planned& epoch, bool first) {
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const Epoch& own = epoch.parts[p];
    for (std::size_t g = 0; g < own.start_ends.size(); ++g) {
      if ((own.start_due[g] == 0 || parts[p].part().direct) != first) continue;
      const auto begin = static_cast<std::size_t>(g == 0 ? 0 : own.start_ends[g - 1]);
      const auto rows = own.start.subspan(begin, static_cast<std::size_t>(own.start_ends[g]) - begin);
      const auto ready = [this] { return all_have(Node::Count::made, now); };
      const std::uint64_t due = now + static_cast<std::uint64_t>(own.start_due[g]);
      first || node != nullptr ? parts[p].load(rows, due, true, done, ready) : parts[p].load_later(rows, due);
    }
    parts[p].feed(now, done, counts);
  }
  count_held();
}

// What is read after this step.
void Run::Impl::issue(const Planned& epoch, std::size_t step) {
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const Epoch& own = epoch.parts[p];
    const auto begin = static_cast<std::size_t>(own.ends[step]), end = static_cast<std::size_t>(own.ends[step + 1]);
    const auto ready = [this] { return all_have(Node::Count::made, now + 1); };
    parts[p].load(own.loads.subspan(begin, end - begin), now + 1 + parts[p].part().ahead, false, done, ready);
  }
  count_held();
}

// Whether all ranks of the node have come so far; false when it closes.
bool Run::Impl::all_have(Node::Count count, std::uint64_t value) {
  return node == nullptr || wait_for_ranks(count, value, [&] { return node->wait(count, value, closing_check); });
}

// What is waited for a rank that reads is storage; for one that has not come so far, its loop.
bool Run::Impl::wait_for_ranks(Node::Count count, std::uint64_t value, const std::function<bool()>& there) {
  for (;;) {
    const std::uint64_t begin = now_ns();
    const bool late = count == Node::Count::begun || !node->all(Node::Count::reached, value);
    const bool all = there();
    if (late) counts.ranks_ns += now_ns() - begin;
    if (all) return true;
    const std::lock_guard lock(mutex);
    if (closing) return false;
    const std::vector<unsigned> behind = node->behind(count, value);
    if (behind.empty()) continue;
    waited_for.clear();
    awaited = node->name(behind.front());
    if (behind.size() > 1) awaited += " and " + std::to_string(behind.size() - 1) + " more";
  }
}

void Run::Impl::count_held() {
  done.held_bytes = 0;
  for (const PartRun& part : parts) done.held_bytes += part.held_nbytes();
  done.peak_bytes = std::max(done.peak_bytes, done.held_bytes);
}

bool Run::Impl::wait_for_room() {
  std::unique_lock lock(mutex);
  told = done;
  awaited.clear();
  waited_for.clear();
  for (const PartRun& part : parts) {
    if (const auto ticket = part.due_first(); ticket != 0) waited_for.push_back(ticket);
  }
  doors->awaited = true;
  const auto go_on = [this] { return closing || has_room(); };
  for (PartRun& part : parts) {
    while (part.waits() && !changed.wait_for(lock, fed_glance, go_on)) {
      lock.unlock();
      part.feed(now, done, counts);
      count_held();
      lock.lock();
      told = done;
    }
  }
  changed.wait(lock, go_on);
  doors->awaited = doors->wanted = false;
  return !closing;
}

// Memory for a batch; and what is known not to be held is asked for.
void Run::Impl::prepare(const Planned& epoch, std::size_t step, Making& made) {
  // Room for all tickets that it can have: a ticket that is not noted would be written to after its memory has gone.
  made.tickets.reserve(3 * parts.size());
  made.fetched.resize(parts.size());
  made.batch.fields.resize(fields);
  made.loan = std::make_shared<Loan>(doors);  // now: nothing may go wrong when it is taken
  std::vector<std::uint64_t> nbytes(fields, 1);
  for (std::size_t p = 0; p < parts.size(); ++p) {
    std::uint64_t& most = nbytes[parts[p].part().field];
    most = std::max(most, parts[p].batch_nbytes(epoch.parts[p], step));
  }
  for (std::size_t field = 0; field < fields; ++field) {
    made.batch.fields[field] = std::make_unique<LentBlock>(pool->take(nbytes[field]), made.loan);
  }
  for (std::size_t p = 0; p < parts.size(); ++p) {
    if (!parts[p].part().direct) continue;
    made.fetched[p] = parts[p].missing(epoch.parts[p], step);
    const auto ticket = parts[p].fetch(epoch.parts[p], step, memory(made, parts[p]), done);
    if (ticket != 0) made.tickets.push_back(ticket);
  }
}

void Run::Impl::note_due(const Making& made) {
  Reader::Ticket last = made.tickets.empty() ? 0 : std::ranges::max(made.tickets);
  for (const PartRun& part : parts) last = std::max(last, part.due_last(now));
  const std::lock_guard lock(mutex);
  due = last;
}

// Puts the batch together. False when it closes.
bool Run::Impl::make(const Planned& epoch, std::size_t step, Making& made) {
  const std::uint64_t begin = now_ns(), hits = done.hits;
  if (node != nullptr) node->tell(Node::Count::reached, now + 1);
  note_due(made);
  const auto settled = [this](Reader::Ticket ticket, ReaderStats& of) { return settle(ticket, of); };
  for (std::size_t p = 0; p < parts.size(); ++p) {
    if (!parts[p].arrive(epoch.parts[p], step, now, settled, done, counts)) return false;
  }
  for (std::size_t p = 0; p < parts.size(); ++p) {
    if (!parts[p].mend(epoch.parts[p], step, now, done)) continue;
    if (!finish(made)) return false;  // or two would write to the same rows
    if (!parts[p].arrive(epoch.parts[p], step, now, settled, done, counts)) return false;
  }
  if (step == 0) start(epoch, false);
  if (node != nullptr) node->tell(Node::Count::loaded, now + 1);
  if (!all_have(Node::Count::loaded, now + 1)) return false;
  done.stall_ns += now_ns() - begin;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const MutableBytes out = memory(made, parts[p]);
    const auto together = parts[p].put_together(epoch.parts[p], step, out, done);
    if (together != 0) made.tickets.push_back(together);
    if (parts[p].missing(epoch.parts[p], step) == made.fetched[p]) continue;
    if (!made.fetched[p].empty() && !finish(made)) return false;  // or two would write to the same rows
    const auto again = parts[p].fetch(epoch.parts[p], step, out, done);
    if (again != 0) made.tickets.push_back(again);
  }
  counts.buffer_hits += done.hits - hits;
  return finish(made);
}

// Waits for all that is read and copied to the batch. False when it closes.
bool Run::Impl::finish(Making& made) {
  const std::uint64_t begin = now_ns();
  bool reads = false;
  for (const auto& uses : made.fetched) reads |= !uses.empty();
  while (!made.tickets.empty()) {
    ReaderStats own;
    try {
      if (!settle(made.tickets.back(), own)) return false;
      done.requests += own.requests;
      done.bytes += own.bytes_read;
    } catch (const std::exception&) {
      made.error = std::current_exception();
    }
    add(counts, own);
    made.tickets.pop_back();
  }
  if (reads) done.stall_ns += now_ns() - begin;
  return true;
}

bool Run::Impl::settle(Reader::Ticket ticket, ReaderStats& of) {
  {
    const std::lock_guard lock(mutex);
    waited_for.assign(1, ticket);
    awaited.clear();
  }
  while (!reader.wait(ticket, closing_check, &of)) {
    const std::lock_guard lock(mutex);
    if (closing) return false;
  }
  return true;
}

void Run::Impl::publish(Making made) {
  ++done.steps;
  count_held();
  made.batch.counts = std::exchange(counts, {});
  const std::lock_guard lock(mutex);
  told = done;
  ready.push_back(std::move(made));
  changed.notify_all();
}

// Waits for all that is still written to the buffers and batches.
void Run::Impl::give_up() noexcept {
  const auto each = [this](const auto& act) {
    for (const PartRun& part : parts) part.each_on_its_way(act);
    for (const Making& one : making) std::for_each(one.tickets.begin(), one.tickets.end(), act);
  };
  each([this](Reader::Ticket ticket) { reader.abandon(ticket); });
  each([this](Reader::Ticket ticket) {
    try {
      reader.wait(ticket, longest_wait);
    } catch (const std::exception&) {  // it is over
    }
  });
}

}  // namespace solar
