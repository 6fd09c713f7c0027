#include "checkpoint/host_parts.h"

#include <algorithm>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/assemble.h"
#include "dtrain/checkpoint/host_states.h"
#include "dtrain/config/experiment.h"

namespace dtrain::train {

HostParts::HostParts(rank::RankSession& session, const CheckpointHosts& hosts, const Snapshot& snapshot)
    : session_(session),
      hosts_(hosts),
      snapshot_(snapshot),
      host_(hosts.host_of[static_cast<std::size_t>(session.world().rank)]),
      copies_(session.experiment().recovery.copies_among(hosts.hosts)) {}

std::vector<NeighbourCopies::Files> HostParts::files_of_hosts() const {
  std::vector<NeighbourCopies::Files> files(static_cast<std::size_t>(hosts_.hosts));
  for (std::size_t i = 0; i < snapshot_.own_sizes().size(); ++i) {
    const Snapshot::OwnSizes& sizes = snapshot_.own_sizes()[i];
    const int rank = static_cast<int>(i);
    NeighbourCopies::Files& of_host = files[static_cast<std::size_t>(hosts_.host_of[i])];
    of_host.push_back({checkpoints::rank_file(rank), static_cast<std::size_t>(sizes.own)});
    if (sizes.moments > 0) {
      of_host.push_back({checkpoints::moments_file(rank), static_cast<std::size_t>(sizes.moments)});
    }
  }
  return files;
}

std::vector<checkpoints::ManifestFile> HostParts::files() const {
  std::vector<checkpoints::ManifestFile> files;
  const std::vector<NeighbourCopies::Files> all = files_of_hosts();
  for (int other = 0; other < hosts_.hosts; ++other) {
    const std::vector<int> to = checkpoints::hosts_with_copies_of(other, hosts_.hosts, copies_);
    if (other != host_ && std::ranges::find(to, host_) == to.end()) continue;
    for (const auto& file : all[static_cast<std::size_t>(other)]) files.push_back({file.name, file.bytes, {}});
  }
  return files;
}

void HostParts::connect() {
  if (copies_ == 0) return;
  std::vector<int> leaders;
  for (int host = 0; host < hosts_.hosts; ++host) {
    const auto first = std::ranges::find(hosts_.host_of, host);
    leaders.push_back(static_cast<int>(first - hosts_.host_of.begin()));
  }
  neighbours_.emplace(session_, leaders, host_, copies_);
}

bool HostParts::copies_ended(const std::filesystem::path& slot, bool at_once) {
  if (!neighbours_) return true;
  if (!std::exchange(is_sending_, true)) neighbours_->start(slot, files_of_hosts(), at_once);
  sent_ = neighbours_->poll();
  if (!sent_.ended) return false;
  is_sending_ = false;
  return true;
}

void HostParts::complete(const std::filesystem::path& folder, checkpoints::SlotNames& names,
                         const checkpoints::GenerationBoard& board, checkpoints::GenerationFiles files) {
  if (!sent_.problem.empty()) {
    session_.log()->warn("the state of batch {} in memory is given up: {}", files.about.step, sent_.problem);
    return;
  }
  for (checkpoints::ManifestFile& file : this->files()) files.files.push_back(std::move(file));
  checkpoints::complete_part(folder, names, files);
  board.set_unsettled(true);
  part_ = files.about.step;
}

// A sum over the ranks tells all of them what each host has to say.
HostParts::Outcome HostParts::settle(const std::filesystem::path& folder, checkpoints::SlotNames& names,
                                     const checkpoints::GenerationBoard& board) {
  const auto hosts = static_cast<std::size_t>(hosts_.hosts), here = static_cast<std::size_t>(host_);
  std::vector<std::int64_t> told(2 * hosts + 2);  // microseconds of each host; hosts without a part; that cannot go on
  if (hosts_.is_leader()) {
    told[here] = static_cast<std::int64_t>(snapshot_.copy_seconds() * 1e6);
    told[hosts + here] = static_cast<std::int64_t>(sent_.link_s * 1e6);
    told[2 * hosts] = part_ ? 0 : 1;
    told[2 * hosts + 1] = has_failed_ || !sent_.connected ? 1 : 0;
  }
  session_.communicator().all_reduce(told.data(), told.size(), comm::DataType::kInt64).wait();
  const auto most = [&](std::size_t first) {
    return static_cast<double>(*std::max_element(&told[first], &told[first] + hosts)) / 1e6;
  };
  const Outcome outcome{told[2 * hosts] == 0, told[2 * hosts + 1] == 0, most(0), most(hosts)};
  if (!hosts_.is_leader()) return outcome;
  try {
    outcome.is_whole ? checkpoints::settle_part(folder, names, *part_) : checkpoints::drop_part(folder, names);
    board.set(names.turn, names.newest);
    board.set_unsettled(false);
  } catch (const SystemError& error) {
    has_failed_ = true;  // the next state tells the others
    session_.log()->warn("the memory for states on this host fails: {}", describe(error));
  }
  part_.reset();
  return outcome;
}

}  // namespace dtrain::train
