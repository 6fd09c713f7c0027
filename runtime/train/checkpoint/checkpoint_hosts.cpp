#include "checkpoint/checkpoint_hosts.h"

#include <algorithm>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/unix_socket.h"

namespace dtrain::train {

namespace {

// True if all ranks see the same folder. A file that rank 0 writes shows it.
bool see_same_folder(comm::ControlPlane& control, const std::filesystem::path& folder) {
  constexpr const char* kKey = "train/checkpoint-folder";
  const bool first = control.world().rank == 0;
  std::filesystem::path sign;
  std::string failure;
  if (first) {
    try {
      make_folder(folder);
      sign = folder / (".seen-by-all-hosts-" + random_hex(8));
      write_file_atomic(sign, "");
    } catch (const SystemError& error) {
      failure = error.what();
    }
    control.set(kKey, Json{{"sign", sign.string()}, {"failure", failure}}.dump());
  }
  const Json told = Json::parse(control.get(kKey));
  if (const auto text = told["failure"].get<std::string>(); !text.empty()) {
    throw Error(text, "give checkpoint_storage a folder that can be written to");
  }
  std::error_code code;
  const bool seen = std::filesystem::exists(told["sign"].get<std::string>(), code);
  const auto answers = control.gather("train/checkpoint-folder-seen", seen ? "yes" : "no");
  if (first) std::filesystem::remove(sign, code);
  return std::all_of(answers.begin(), answers.end(), [](const std::string& answer) { return answer == "yes"; });
}

}  // namespace

CheckpointHosts find_checkpoint_hosts(comm::ControlPlane& control, const std::filesystem::path& folder) {
  const comm::World& world = control.world();
  CheckpointHosts result;
  std::vector<std::string> names;
  for (const std::string& name : control.gather("train/checkpoint-hosts", world.host)) {
    const auto known = std::find(names.begin(), names.end(), name);
    result.host_of.push_back(static_cast<int>(known - names.begin()));
    if (known == names.end()) names.push_back(name);
  }
  result.hosts = static_cast<int>(names.size());
  result.host = result.host_of[static_cast<std::size_t>(world.rank)];
  for (int rank = 0; rank < world.size; ++rank) {
    if (result.host_of[static_cast<std::size_t>(rank)] != result.host) continue;
    if (rank < world.rank) ++result.local_rank;
    result.ranks_here.push_back(rank);
  }
  if (result.hosts > 1) result.folder_is_shared = see_same_folder(control, folder);
  return result;
}

}  // namespace dtrain::train
