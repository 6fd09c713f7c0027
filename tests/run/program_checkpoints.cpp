#include "program_checkpoints.h"

#include <cstdio>
#include <cstring>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"

namespace dtrain::rank {
namespace {

constexpr std::size_t kPage = 4096;
constexpr auto kLookPeriod = std::chrono::milliseconds(50);

std::size_t pages(std::size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

}  // namespace

ProgramCheckpoints::ProgramCheckpoints(RankSession& session, std::span<float> weights)
    : session_(session), weights_(weights) {
  const int ranks = session.world().size;
  SharedMemory shared = session.share_on_host(
      "checkpoint",
      [&] {
        return checkpoints::SnapshotMemory::create(static_cast<std::size_t>(ranks) * pages(weights.size_bytes()),
                                                   ranks);
      },
      comm::HostAccess::kWrite);
  memory_.emplace(std::move(shared), ranks);
  if (session.world().rank != 0) return;
  const checkpoints::SaverOptions options{.storage = session.checkpoint_folder(),
                                          .retention = {.latest = 3, .best = 0},
                                          .log = session.run_dir() / "logs" / "saver.log"};
  saver_ = std::make_unique<checkpoints::Saver>(options, *memory_);
}

std::int64_t ProgramCheckpoints::resume() {
  const std::filesystem::path from = session_.resume_from();
  if (from.empty()) return 0;
  const Json state = read_json(from / checkpoints::kStateFile);
  const std::string bytes = read_file(from / checkpoints::rank_file(0));  // all ranks have the same
  if (bytes.size() != weights_.size_bytes()) throw DataError(from.string() + " holds another number of weights");
  std::memcpy(weights_.data(), bytes.data(), bytes.size());
  const auto batch = state.at("batch").get<std::int64_t>();
  if (session_.world().rank == 0) {
    session_.cut_metrics(state.at("metrics_bytes").get<std::int64_t>(), batch);
    session_.write_event("resumed", {{"step", batch}, {"path", from.string()}});
  }
  std::printf("resumed at %lld\n", static_cast<long long>(batch));
  return batch;
}

bool ProgramCheckpoints::save(std::int64_t batch, const std::string& reason) {
  const comm::World& world = session_.world();
  const std::size_t part = pages(weights_.size_bytes());
  std::memcpy(memory_->data() + static_cast<std::size_t>(world.rank) * part, weights_.data(), weights_.size_bytes());
  memory_->mark_copied(world.rank, ++number_);
  std::string error;
  if (saver_) {
    checkpoints::SaveRequest request{
        .number = number_,
        .about = {.step = batch, .epoch = batch / 100, .world_size = world.size, .reason = reason},
        .state = {{"batch", batch}, {"metrics_bytes", session_.metrics_bytes()}}};
    for (int rank = 0; rank < world.size; ++rank) {
      request.files.push_back({.name = checkpoints::rank_file(rank),
                               .offset = static_cast<std::size_t>(rank) * part,
                               .bytes = weights_.size_bytes()});
    }
    saver_->save(request);
    std::optional<checkpoints::SaveResult> result;
    while (!(result = saver_->wait(kLookPeriod))) {
      if (session_.control().failure()) throw CommError("another rank has failed while a checkpoint was written");
    }
    error = result->error;
    if (error.empty()) {
      session_.write_event("checkpoint_saved", {{"step", batch},
                                                {"epoch", batch / 100},
                                                {"path", result->path.string()},
                                                {"bytes", result->bytes},
                                                {"reason", reason},
                                                {"copy_s", 0.0},
                                                {"wait_s", result->wait_s},
                                                {"write_s", result->write_s},
                                                {"deleted", result->deleted}});
    } else {
      session_.write_event("checkpoint_failed", {{"step", batch}, {"cause", error}, {"retried", false}});
    }
  }
  return session_.control().gather("saved-" + std::to_string(number_), error).front().empty();
}

std::string hash_of(std::span<const float> weights) {
  std::uint32_t hash = 2166136261u;
  for (const std::byte byte : std::as_bytes(weights)) hash = (hash ^ static_cast<std::uint32_t>(byte)) * 16777619u;
  char text[16];
  std::snprintf(text, sizeof text, "%08x", hash);
  return text;
}

}  // namespace dtrain::rank
