#include "synthetic_rank.h"

#include <iterator>

#include <spdlog/fmt/compile.h>

namespace dtrain::test {
namespace {

using profile::Phase;
using profile::Sketch;

constexpr std::size_t kFlushBytes = 1 << 20;
constexpr std::int64_t kStepsOfAWindow = 100;
constexpr double kOutlier = 1.5;  // of the usual wall time

template <typename... Args>
void put(fmt::memory_buffer& out, Args&&... args) {
  fmt::format_to(std::back_inserter(out), std::forward<Args>(args)...);
}

template <typename... Args>
void put_text(fmt::memory_buffer& out, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
}

void put_sketch(fmt::memory_buffer& out, const char* name, const Sketch& sketch) {
  put(out, FMT_COMPILE("\"{}\":{{\"count\":{},\"sum\":{},\"min\":{},\"max\":{},\"zeros\":{},\"bins\":["), name,
      sketch.count(), sketch.sum(), sketch.min(), sketch.max(), sketch.zeros());
  bool first = true;
  for (const Sketch::Bin& bin : sketch.bins()) {
    put(out, FMT_COMPILE("{}{},{}"), first ? "" : ",", bin.index, bin.count);
    first = false;
  }
  put(out, FMT_COMPILE("]}}"));
}

}  // namespace

SyntheticRank::SyntheticRank(const std::filesystem::path& folder, const SyntheticRun& run, int rank)
    : run_(&run),
      rank_(rank),
      file_(folder / "profile" / fmt::format("rank-{:04}.jsonl", rank)),
      start_ns_(run.initialization_ns) {
  buckets_.resize(static_cast<std::size_t>(run.buckets));
  const std::string host = fmt::format("node{}", rank / run.ranks_per_host);
  put_text(out_,
           R"({{"record":"header","schema":1,"kind":"rank","rank":{},"world_size":{},"host":"{}","agent":"{}",)"
           R"("start_ns":0,"rank_0_clock":{{"time_ns":0,"offset_ns":0,"error_ns":{}}},"cpus":[{}]}})"
           "\n",
           rank, run.ranks, host, host, rank < run.ranks_per_host ? 0 : 20'000, rank % run.ranks_per_host);
  put_text(out_,
           R"({{"record":"part","part":"initialization","batch":0,"start_ns":0,"end_ns":{},"duration_ns":{}}})"
           "\n",
           start_ns_, start_ns_);
}

void SyntheticRank::add(const Step& step) {
  profile::PhaseTimes phases = step.own->own_ns;
  phases[static_cast<std::size_t>(Phase::kAllreduceWait)] = step.wait_ns;
  phases[static_cast<std::size_t>(Phase::kTrainBatch)] +=
      phases[static_cast<std::size_t>(Phase::kForward)] + phases[static_cast<std::size_t>(Phase::kBackward)];
  const bool detailed = step.batch <= run_->detail_steps;
  const bool outlier =
      usual_wall_ > 0 && static_cast<double>(step.wall_ns) > kOutlier * static_cast<double>(usual_wall_);
  if (detailed || outlier) write_step(step, phases);
  if (!detailed) {
    if (first_ == 0) {
      first_ = step.batch;
      window_start_ = step.start_ns;
    }
    last_ = step.batch;
    window_end_ = step.start_ns + step.wall_ns;
    outlier ? void(++window_outliers_) : fold(step, phases);
    const std::int64_t size = kStepsOfAWindow * std::max<std::int64_t>(1, (first_ - 1) / 10'000);
    if (last_ - first_ + 1 == size) close_window();
  }
  if (out_.size() > kFlushBytes) flush();
}

void SyntheticRank::write_step(const Step& step, const profile::PhaseTimes& phases) {
  put(out_,
      FMT_COMPILE(
          R"({{"record":"loader","batch":{},"time_ns":{},"queue_depth":{},"workers":1,"fetch_ns":{},"pinned":false)"),
      step.batch, step.start_ns + step.own->own_ns[0], step.own->queue_depth, run_->loader_fetch_ns);
  write_reading(1);
  put(out_, FMT_COMPILE("}}\n"));
  // The exchange begins when the last rank has come; a bucket a share of it.
  const std::int64_t began = step.arrived_ns + step.wait_ns - step.exchange_ns;
  for (int b = 0; run_->ranks > 1 && b < run_->buckets; ++b) {
    const std::int64_t each = step.exchange_ns / run_->buckets;
    put(out_,
        FMT_COMPILE(
            R"({{"record":"collective","batch":{},"sequence":{},"operation":"all_reduce","bucket":{},"bytes":{},)"
            R"("world_size":{},"enqueued_ns":{},"started_ns":{},"ended_ns":{},"exposed_ns":{},"bus_bandwidth":{}}})"
            "\n"),
        step.batch, step.batch * run_->buckets + b, b, run_->bucket_bytes, run_->ranks, step.arrived_ns,
        began + b * each, began + (b + 1) * each, each, each > 0 ? run_->bucket_bytes * 1'000'000'000 / each : 0);
  }
  put(out_,
      FMT_COMPILE(
          R"({{"record":"step","batch":{},"epoch":0,"start_ns":{},"wall_ns":{},"samples":{},"exchanged":true,"phases":{{)"),
      step.batch, step.start_ns, step.wall_ns, step.own->samples);
  for (std::size_t i = 0; i < profile::kPhaseCount; ++i) {
    put(out_, FMT_COMPILE("{}\"{}\":{}"), i == 0 ? "" : ",", profile::name_of(static_cast<Phase>(i)), phases[i]);
  }
  put(out_, FMT_COMPILE("}}}}\n"));
}

void SyntheticRank::write_reading(std::int64_t batches) {
  if (!run_->reading) return;
  const SyntheticReading& one = *run_->reading;
  put(out_, FMT_COMPILE(R"(,"cpu_ns":{},"no_core_ns":{},"bytes":{},"disk_bytes":{},"requests":{},"skipped":{})"),
      batches * one.cpu_ns, batches * one.no_core_ns, batches * one.bytes, batches * one.disk_bytes,
      batches * one.requests, batches * one.skipped);
}

void SyntheticRank::fold(const Step& step, const profile::PhaseTimes& phases) {
  ++steps_;
  samples_ += step.own->samples;
  const double delta = static_cast<double>(step.wall_ns) - mean_;
  mean_ += delta / static_cast<double>(steps_);
  m2_ += delta * (static_cast<double>(step.wall_ns) - mean_);
  wall_.add(step.wall_ns);
  for (std::size_t i = 0; i < profile::kPhaseCount; ++i) phases_[i].add(phases[i]);
  for (Bucket& bucket : buckets_) {
    ++bucket.count;
    bucket.duration.add(step.exchange_ns / run_->buckets);
    bucket.exposed.add(step.exchange_ns / run_->buckets);
  }
  queue_.add(step.own->queue_depth);
  fetch_.add(run_->loader_fetch_ns);
}

void SyntheticRank::close_window() {
  if (first_ == 0) return;
  if (usual_wall_ == 0) usual_wall_ = static_cast<std::int64_t>(wall_.quantile(0.5));
  outliers_ += window_outliers_;
  put_text(out_,
           R"({{"record":"window","first_batch":{},"last_batch":{},"epoch":0,"start_ns":{},"end_ns":{},"steps":{},)"
           R"("outliers":{},"outliers_folded":0,"exchanged":{},"samples":{},"wall_ns_m2":{},)",
           first_, last_, window_start_, window_end_, steps_, window_outliers_, steps_, samples_, m2_);
  put_sketch(out_, "wall_ns", wall_);
  put_text(out_, ",\"phases\":{{");
  for (std::size_t i = 0; i < profile::kPhaseCount; ++i) {
    if (i > 0) put_text(out_, ",");
    put_sketch(out_, std::string(profile::name_of(static_cast<Phase>(i))).c_str(), phases_[i]);
  }
  put_text(out_, "}},\"collectives\":[");
  for (std::size_t b = 0; run_->ranks > 1 && b < buckets_.size(); ++b) {
    put_text(out_,
             R"({}{{"operation":"all_reduce","bucket":{},"world_size":{},"count":{},"bytes":{},"first_sequence":0,)"
             R"("last_sequence":0,)",
             b == 0 ? "" : ",", b, run_->ranks, buckets_[b].count, buckets_[b].count * run_->bucket_bytes);
    put_sketch(out_, "duration_ns", buckets_[b].duration);
    put_text(out_, ",");
    put_sketch(out_, "exposed_ns", buckets_[b].exposed);
    put_text(out_, ",");
    put_sketch(out_, "queued_ns", {});
    put_text(out_, "}}");
  }
  put_text(out_, R"(],"loader":{{"count":{},"workers":1,"pinned":false,)", queue_.count());
  put_sketch(out_, "queue_depth", queue_);
  put_text(out_, ",");
  put_sketch(out_, "fetch_ns", fetch_);
  if (run_->reading) put_text(out_, R"(,"measured":{})", queue_.count());
  write_reading(queue_.count());
  put_text(out_, "}}}}\n");
  first_ = last_ = steps_ = samples_ = window_outliers_ = 0;
  mean_ = m2_ = 0;
  wall_ = queue_ = fetch_ = {};
  phases_.fill({});
  for (Bucket& bucket : buckets_) bucket = {};
}

std::int64_t SyntheticRank::finish(std::int64_t end_ns) {
  close_window();
  put_text(out_,
           R"({{"record":"part","part":"loop","batch":{},"start_ns":{},"end_ns":{},"duration_ns":{}}})"
           "\n",
           run_->steps, start_ns_, end_ns, end_ns - start_ns_);
  put_text(out_,
           R"({{"record":"part","part":"finalization","batch":{},"start_ns":{},"end_ns":{},"duration_ns":1000}})"
           "\n",
           run_->steps, end_ns, end_ns + 1000);
  put_text(out_,
           R"({{"record":"end","time_ns":{},"how":"finished","records":0,"dropped":0,"lost":0}})"
           "\n",
           end_ns + 1000);
  flush();
  file_.close();
  return outliers_;
}

void SyntheticRank::flush() {
  file_.write(out_.data(), static_cast<std::streamsize>(out_.size()));
  out_.clear();
}

}  // namespace dtrain::test
