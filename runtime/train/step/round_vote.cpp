#include "step/round_vote.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

namespace dtrain::train {
namespace {

// Several flags share a word, which keeps the message short. The sum over the ranks counts each flag in its own bits.
constexpr int kBitsOfFlag = 21;  // 2,097,151 ranks

std::int64_t flag(bool set, int index) {
  return set ? std::int64_t{1} << (index * kBitsOfFlag) : 0;
}

std::int64_t count_in(std::int64_t word, int index) {
  return word >> (index * kBitsOfFlag) & ((std::int64_t{1} << kBitsOfFlag) - 1);
}

// The sum of the ranks' digests and the sum of their squares show if all digests are alike: n times the sum of squares
// is then the square of the sum, and is greater otherwise. 20 bits leave room for the squares of 8 million ranks. Two
// values that differ have the same digest once in a million rounds; the digest of the next round differs.
std::int64_t short_digest(std::uint64_t digest) {
  return static_cast<std::int64_t>((digest * 0x9e3779b97f4a7c15u) >> 44);
}

}  // namespace

CollectiveVote::CollectiveVote(const RunServices& run, NonFinite& non_finite)
    : communicator_(run.communicator),
      recorder_(run.recorder),
      log_(run.communicator, run.recorder),
      non_finite_(non_finite) {}

void CollectiveVote::announce(const Announcement& mine) {
  has_batch_ |= mine.has_batch;
  Sent& sent = sent_.emplace_back();
  sent.values[0] = flag(mine.has_batch, 0) | flag(mine.fits_graph, 1) | flag(mine.counts_for_all, 2);
  sent.values[1] = flag(mine.stop, 0) | flag(mine.saver_busy, 1) | flag(mine.wants_checkpoint, 2);
  sent.values[2] = flag(has_batch_, 0) | flag(mine.generation_busy, 1) | flag(mine.wants_generation, 2);
  sent.values[3] = mine.trace ? mine.trace->first_batch : 0;
  sent.values[4] = mine.trace ? (mine.trace->kernels_alone ? -1 : 1) * mine.trace->last_batch : 0;
  const std::int64_t digests[] = {mine.has_batch ? short_digest(mine.rates + static_cast<std::uint64_t>(rounds_)) : 0,
                                  mine.has_batch ? short_digest(mine.place) : 0};
  for (std::size_t i = 0; i < std::size(digests); ++i) {
    sent.values[kFirstOfDigests + 2 * i] = digests[i];
    sent.values[kFirstOfDigests + 2 * i + 1] = digests[i] * digests[i];
  }
  const auto words = non_finite_.take_words(mine.last_batch);
  std::copy(words.begin(), words.end(), sent.values + kFirstOfNonFinite);
  sent.last_batch = mine.last_batch;
  sent.work = communicator_.all_reduce(sent.values, std::size(sent.values), comm::DataType::kInt64);
  ++rounds_;
}

void CollectiveVote::collect(std::size_t keep) {
  if (sent_.size() <= keep) return;
  const profile::PhaseScope phase(recorder_, profile::Phase::kAllreduceWait);
  while (sent_.size() > keep) {
    sent_.front().work.wait();
    log_.record("all_reduce", -1, sent_.front().work);
    read(sent_.front());
    sent_.pop_front();
  }
}

void CollectiveVote::read(const Sent& sent) {
  last_ = {count_in(sent.values[0], 0), count_in(sent.values[0], 1), count_in(sent.values[1], 0) > 0};
  batches_ += last_.active;
  divisor_ += count_in(sent.values[0], 2) > 0 ? communicator_.world_size() : last_.active;
  ranks_with_batches_ = count_in(sent.values[2], 0);
  generation_busy_ = count_in(sent.values[2], 1) > 0;
  generation_wanted_ = count_in(sent.values[2], 2) > 0;
  stop_seen_ |= last_.stop;
  saver_busy_ = count_in(sent.values[1], 1) > 0;
  checkpoint_wanted_ = count_in(sent.values[1], 2) > 0;
  if (last_.stop && !stop_round_) stop_round_ = rounds_ - static_cast<std::int64_t>(sent_.size()) + 1;
  if (sent.values[3] > 0) trace_window_ = {sent.values[3], std::abs(sent.values[4]), sent.values[4] < 0};
  non_finite_.add_round(std::span(sent.values).subspan<kFirstOfNonFinite>(), sent.last_batch);
  compare(sent, kFirstOfDigests + 2, Difference::kPlace);
  compare(sent, kFirstOfDigests, Difference::kRates);
}

void CollectiveVote::compare(const Sent& sent, std::size_t first, Difference difference) const {
  const std::int64_t sum = sent.values[first], squares = sent.values[first + 1];
  if (explain_ && last_.active * squares != sum * sum) explain_(difference);
}

Round CollectiveVote::agree() {
  collect();
  return last_;
}

void CollectiveVote::begin_period(bool has_batch) {
  has_batch_ = has_batch;
  batches_ = 0;
  divisor_ = 0;
  ranks_with_batches_ = 0;
}

void CollectiveVote::visit(StateVisitor& visitor) {
  visitor.number("has_batch", has_batch_);
  visitor.number("batches", divisor_);
  if (visitor.replaces()) batches_ = divisor_;
  visitor.number("ranks_with_batches", ranks_with_batches_);
}

std::optional<profile::TraceWindow> CollectiveVote::take_trace_window() {
  return std::exchange(trace_window_, std::nullopt);
}

void CollectiveVote::add_up(std::span<std::int64_t> values) {
  communicator_.all_reduce(values.data(), values.size(), comm::DataType::kInt64).wait();
}

}  // namespace dtrain::train
