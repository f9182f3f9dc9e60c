// What a ticket of a Reader waits for, and how far the tickets are.
#include "read/impl.hpp"

namespace solar {

using read::Job;
using read::ReadPlan;

// What the ticket waits for, under the lock: no ReadPlan that is open changes, nor goes, meanwhile.
std::string Reader::Impl::waiting_for(Ticket ticket) {
  const std::lock_guard lock(mutex);
  const auto found = tickets.find(ticket);
  if (found == tickets.end()) return "";
  const Job& job = *found->second;
  if (job.state == Job::State::finished || job.converts() || job.batch.rows.empty()) return "";
  std::string own = on_its_way(&job);
  if (!own.empty()) return own;
  own = not_begun(job);
  const std::string others = own.empty() ? "" : on_its_way(nullptr);
  return others.empty() ? own : own + " (not begun: the threads wait for " + others + ")";
}

// The piece that is longest on its way: of that Job, or of any.
std::string Reader::Impl::on_its_way(const Job* wanted) const {
  const Job* of = nullptr;
  std::pair<std::uint64_t, std::uint32_t> first{UINT64_MAX, 0};  // since when, and which piece
  for (const auto& [ticket, job] : tickets) {
    if (job->state != Job::State::open || job->converts() || (wanted != nullptr && wanted != job)) continue;
    for (const auto& worker : workers) {
      for (const read::Flight& flight : worker->flights()) {
        const std::uint64_t word = flight.word();
        if (word == read::Flight::none || word >> 32 != (ticket & UINT32_MAX)) continue;
        const std::pair one(flight.since_ns(), static_cast<std::uint32_t>(word));
        if (one < first) {
          of = job;
          first = one;
        }
      }
    }
  }
  return of == nullptr ? "" : of->batch.where(of->batch.pieces[first.second], 0);
}

// A piece that no thread has taken yet. Of what is not planned, a plan is made for the first row.
std::string Reader::Impl::not_begun(const Job& job) const {
  const ReadPlan& batch = job.batch;
  if (job.state == Job::State::open) {
    const std::uint32_t unit = job.next_unit;
    return unit < batch.units() ? batch.where(batch.pieces[batch.unit_begin[unit]], 0) : "";
  }
  ReadPlan first;
  Work work;
  work.source = batch.source;
  work.rows = std::span(&job.first_row, 1);
  if (work.boxes = batch.boxes; work.boxes != nullptr) work.corners = batch.corner(0);
  work.out = MutableBytes(batch.out.data(), batch.slot_nbytes);
  first.begin(work);
  first.plan(1);
  return first.pieces.empty() ? "" : first.where(first.pieces.front(), 0);
}

// Of what is finished, and of what is not yet: of that, where it is not planned, each row is a piece.
std::pair<std::uint64_t, std::uint64_t> Reader::Impl::progress(Ticket last) {
  const std::lock_guard lock(mutex);
  std::uint64_t done = over, all = over;
  for (const auto& [ticket, job] : tickets) {
    if (ticket > last || job->state == Job::State::finished) continue;
    const bool planned = job->state == Job::State::open;
    const std::uint64_t pieces = planned ? job->pieces() : job->batch.asked;
    all += pieces;
    if (planned) done += pieces - job->pieces_left;
  }
  return {done, all};
}

}  // namespace solar
