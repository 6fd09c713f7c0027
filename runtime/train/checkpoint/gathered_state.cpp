#include "checkpoint/gathered_state.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <map>
#include <utility>
#include <vector>

#include "checkpoint/own_state.h"
#include "checkpoint/restore.h"
#include "checkpoint/state_image.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/checkpoint/assemble.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/checkpoint/generation_slots.h"
#include "dtrain/checkpoint/memory_folder.h"
#include "dtrain/rank/run_memory.h"

namespace dtrain::train {
namespace {

namespace fs = std::filesystem;

using checkpoints::StateKind;

using FileSizes = std::map<std::string, std::size_t>;  // of files

void write_file(const fs::path& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!file.flush()) throw SystemError("cannot write into memory: " + path.string(), errno);
}

FileSizes files_in(const fs::path& folder) {
  FileSizes files;
  for (const auto& entry : fs::directory_iterator(folder)) files[entry.path().filename()] = entry.file_size();
  return files;
}

// The parts of the state that this host has, as files. Empty: none.
class Parts {
 public:
  Parts(const rank::RunMemory& memory, int world) : state_(*memory.begins_with) {
    if (memory.folder.empty()) return;
    const checkpoints::HostStates here = checkpoints::look_at_host(memory.folder);
    if (!memory.last.has(here.lineage, state_.step)) return;
    const auto is_chosen = [&](const auto& state) { return state.step == state_.step; };
    if (state_.kind == StateKind::kWhole) {
      if (std::ranges::none_of(here.whole, is_chosen)) return;
      folder_ = checkpoints::whole_folder(memory.folder, state_.step);
    } else {
      folder_ = checkpoints::gathered_folder(memory.folder, state_.step);
      fs::remove_all(folder_);
      make_folder(folder_);
      if (state_.kind == StateKind::kShared) collect(memory.folder, here, world);
      if (state_.kind == StateKind::kParts && std::ranges::any_of(here.parts, is_chosen)) link_part(memory.folder);
    }
    files_ = files_in(folder_);
  }

  const fs::path& folder() const { return folder_; }
  const FileSizes& files() const { return files_; }

 private:
  // Other files there are of an earlier state.
  void link_part(const fs::path& memory) {
    const fs::path part = checkpoints::part_folder(memory, state_.step);
    for (const checkpoints::ManifestFile& file : checkpoints::read_manifest(part).files) {
      fs::create_hard_link(part / file.name, folder_ / file.name);
    }
    fs::create_hard_link(part / checkpoints::kManifestFile, folder_ / checkpoints::kManifestFile);
  }

  void collect(const fs::path& memory, const checkpoints::HostStates& here, int world) {
    const fs::path shared = checkpoints::shared_folder(memory, state_.step);
    const auto fits = [&](const auto& state) { return state.step == state_.step && state.world == world; };
    if (std::ranges::any_of(here.shared, fits)) {
      for (const auto& [name, bytes] : files_in(shared)) fs::create_hard_link(shared / name, folder_ / name);
    }
    if (std::ranges::none_of(here.own, fits)) return;
    const checkpoints::GenerationBoard board(memory);
    for (int place = 0; place < board.ranks(); ++place) {
      const auto published = board.published(place, state_.step);
      if (!published) continue;
      const int rank = board.number(place);
      const StateImage image({.rank = rank, .own_alone = true, .names = {}},
                             [&](StateVisitor& visitor) { visit_own_state(published->bytes, visitor); });
      write_file(folder_ / checkpoints::rank_file(rank), as_text(image.own().file()));
    }
  }

  const checkpoints::ChosenState state_;
  fs::path folder_;
  FileSizes files_;
};

// A file goes from the first rank that has it to all hosts that lack it.
struct Transfer {
  std::string name;
  std::size_t bytes = 0;
  int from = 0;

  bool is_moments() const { return name.ends_with(checkpoints::kMomentsSuffix); }
};

std::vector<Transfer> transfers_of(const std::vector<std::string>& told, const CheckpointHosts& hosts) {
  std::vector<Transfer> transfers;
  std::map<std::string, int> known;
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    const Json files = Json::parse(told[rank]);
    for (const auto& [name, bytes] : files.items()) {
      if (known[name]++ == 0) transfers.push_back({name, bytes.get<std::size_t>(), static_cast<int>(rank)});
    }
  }
  std::erase_if(transfers, [&](const Transfer& transfer) { return known[transfer.name] == hosts.hosts; });
  // The manifest is the mark of a whole state.
  std::ranges::stable_partition(transfers,
                                [](const auto& transfer) { return transfer.name != checkpoints::kManifestFile; });
  return transfers;
}

}  // namespace

GatheredState gather_state(rank::RankSession& session, const CheckpointHosts& hosts) {
  const rank::RunMemory& memory = session.memory();
  const std::int64_t step = memory.begins_with->step;
  const bool leads = hosts.is_leader();
  const fs::path in_memory = memory.problem.empty() ? memory.folder : fs::path();
  std::optional<Parts> parts;
  if (leads) parts.emplace(memory, session.world().size);
  const Json mine = leads ? Json(parts->files()) : Json::object();
  const std::vector<Transfer> transfers =
      transfers_of(session.control().gather("train/memory-parts", mine.dump()), hosts);
  fs::path folder;
  bool is_temporary = false;
  if (leads) {
    std::size_t more = 0;
    for (const Transfer& transfer : transfers) {
      more += parts->files().contains(transfer.name) ? 0 : transfer.bytes;
      if (transfer.is_moments()) more += transfer.bytes;  // they go into the optimizer's file
    }
    folder = parts->folder();
    if (folder.empty()) {
      is_temporary = in_memory.empty() || !checkpoints::why_no_room(in_memory, more).empty();
      folder = is_temporary ? fs::temp_directory_path() / ("dtrain-checkpoint-" + random_hex(8))
                            : checkpoints::gathered_folder(in_memory, step);
      fs::remove_all(folder);
      make_folder(folder);
    }
  }
  for (const Transfer& transfer : transfers) {
    const bool receives = leads && !parts->files().contains(transfer.name);
    const fs::path file = folder / transfer.name;
    send_file(session, transfer.from, file, file, transfer.bytes, receives);
  }
  if (leads) {
    if (memory.begins_with->kind != StateKind::kWhole) {
      checkpoints::assemble(folder, checkpoints::read_manifest(folder).about);
    }
    if (!is_temporary) {
      const fs::path whole = checkpoints::whole_folder(in_memory, step);
      if (folder != whole) fs::rename(folder, whole);
      folder = whole;
    }
  }
  // From here on each host can go on alone.
  session.control().barrier("train/memory-gathered");
  const std::string key = "train/memory-folder-" + std::to_string(hosts.host);
  if (leads) {
    if (!in_memory.empty()) checkpoints::begin_lineage(in_memory, memory.lineage.id, step);
    session.control().set(key, Json{{"folder", folder.string()}, {"is_temporary", is_temporary}}.dump());
  }
  const Json told = Json::parse(session.control().get(key));
  return {told.at("folder").get<std::string>(), leads && is_temporary};
}

}  // namespace dtrain::train
