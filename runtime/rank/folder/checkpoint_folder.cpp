#include <fcntl.h>
#include <pwd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>

#include <sys/stat.h>

#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/json.h"
#include "dtrain/base/unix_socket.h"
#include "dtrain/base/untrusted.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "dtrain/host/network.h"
#include "dtrain/rank/checkpoint_folder.h"
#include "dtrain/rank/plan_file.h"

namespace dtrain::rank {

namespace {

namespace fs = std::filesystem;

constexpr const char* kOwnerFile = "run.json";  // in the run's folder of the storage: whose checkpoints these are
constexpr std::size_t kLargestOwnerFile = 64 << 10;

// The contents of run.json. The claim is a random text, which storage.json in the run's folder has too. If a run that
// was moved takes the folder over, both get a new claim: so a copy that could not be seen then is found out later.
struct Owner {
  fs::path run;             // the run's path when the file was written
  std::uint64_t inode = 0;  // of its folder; 0: not known
  std::string claim;
};

Owner read_owner(const fs::path& folder) {
  const Json json = parse_if_valid(read_file(folder / kOwnerFile, kLargestOwnerFile)).value_or(Json());
  return {text_at(json, "run"), value_at<std::uint64_t>(json, "inode").value_or(0), text_at(json, "claim")};
}

void write_owner(const fs::path& folder, const RunFolder& run, const std::string& claim) {
  const Json json = {{"run", run.path.string()}, {"inode", inode_of(run.path)}, {"claim", claim}};
  write_file_atomic(folder / kOwnerFile, to_line(json) + "\n");
}

enum class Claim { kOwn, kMoved, kOfAnother };

Claim claim_on(const fs::path& folder, const Owner& owner, const RunFolder& run) {
  std::error_code code;
  const bool same_path = fs::equivalent(owner.run, run.path, code);
  if (same_path && (owner.inode == 0 || owner.inode == inode_of(run.path))) return Claim::kOwn;
  const std::string mine = checkpoints::claim_of_run(run.path);
  if (!mine.empty() && !owner.claim.empty() && mine != owner.claim) return Claim::kOfAnother;
  if (owner.run.empty() || same_path || !fs::exists(RunFolder{owner.run}.plan(), code)) return Claim::kMoved;
  // The run that is there now may be another one.
  return checkpoints::storage_of_run(owner.run) == folder ? Claim::kOfAnother : Claim::kMoved;
}

std::string user_text() {
  const uid_t id = ::geteuid();
  const passwd* const entry = ::getpwuid(id);
  const std::string number = "uid " + std::to_string(id);
  return entry ? "user " + std::string(entry->pw_name) + " (" + number + ")" : number;
}

[[noreturn]] void refuse(const fs::path& path, int code) {
  throw ConfigError(
      "checkpoint_storage: " + user_text() + " cannot write into " + path.string() + ": " + std::strerror(code),
      "make it writable for that user, or name another folder in checkpoint_storage");
}

// Makes a folder in `storage`, with these checkpoints. Writes storage.json last: until then the run stays as it was.
fs::path make_own_folder(const RunFolder& run, const fs::path& storage, const std::vector<fs::path>& checkpoints) {
  fs::path folder;
  do {
    folder = storage / (run.path.filename().string() + "-" + random_hex(4));
    errno = 0;
  } while (::mkdir(folder.c_str(), 0777) != 0 && errno == EEXIST);
  if (errno != 0) refuse(storage, errno);
  const std::string claim = random_hex(8);
  try {
    for (const fs::path& checkpoint : checkpoints) checkpoints::adopt_checkpoint(checkpoint, folder);
    write_owner(folder, run, claim);
  } catch (const SystemError& error) {
    refuse(storage, error.code());
  }
  checkpoints::write_storage_of_run(run.path, folder, claim);
  return folder;
}

// Makes a folder for the run without the checkpoints that the other run has saved since: the run's metrics end before.
std::string separate(const RunFolder& run, const fs::path& shared, const Owner& owner) {
  const std::optional<std::int64_t> last = read_state(run).last_saved;
  std::vector<fs::path> own;
  const std::vector<checkpoints::Entry> all = checkpoints::list(shared);
  for (const checkpoints::Entry& entry : all) {
    if (last && entry.about.step <= *last) own.push_back(entry.path);
  }
  const std::string what = "the checkpoints of the run " + run.path.string() + " are in " + shared.string() +
                           ", which belongs to the run " + owner.run.string();
  if (last && own.empty()) {
    throw ConfigError(
        what + ", and none is left there up to batch " + std::to_string(*last) + ", the last that this run has saved",
        all.empty() ? "copy the folder of that run again"
                    : "copy the folder of that run again, or launch a new run with initial_weights: " +
                          all.back().path.string());
  }
  const fs::path folder = make_own_folder(run, shared.parent_path(), own);
  return what + ": this run gets a folder of its own, " + folder.string() +
         (last ? ", with those up to batch " + std::to_string(*last) : "");
}

}  // namespace

void check_checkpoint_storage(const config::CheckpointStorage& storage) {
  if (storage.folder.empty()) return;
  std::error_code code;
  // A folder for all hosts is one that an administrator has mounted. Made here, it would be on this host's own disk.
  if (const fs::path& mount = storage.host_path; !mount.empty() && !fs::is_directory(mount, code)) {
    throw ConfigError("checkpoint_storage.host_path: there is no folder " + mount.string(),
                      "mount it, or make it if it is meant to be on this host's disk; type: directory makes its folder "
                      "itself");
  }
  fs::path there = storage.folder;
  while (!fs::exists(there, code) && there.has_relative_path()) there = there.parent_path();
  if (!fs::is_directory(there, code)) refuse(there, ENOTDIR);
  if (::access(there.c_str(), W_OK | X_OK) != 0) refuse(there, errno);
}

fs::path make_checkpoint_folder(const RunFolder& run, const config::CheckpointStorage& storage) {
  fs::path known = checkpoints::storage_of_run(run.path);
  if (known != run.path / "checkpoints") return known;
  if (storage.folder.empty() || !checkpoints::list(known).empty()) return {};
  check_checkpoint_storage(storage);
  std::error_code code;
  fs::create_directories(storage.folder, code);
  if (code) refuse(storage.folder, code.value());
  return make_own_folder(run, storage.folder, {});
}

std::string claim_checkpoint_folder(const RunFolder& run) {
  const fs::path folder = find_checkpoint_folder(run);
  if (folder == run.path / "checkpoints") return "";
  const Owner owner = read_owner(folder);
  const Claim claim = claim_on(folder, owner, run);
  if (claim == Claim::kOfAnother) return separate(run, folder, owner);
  if (claim == Claim::kMoved) {
    const std::string fresh = random_hex(8);
    write_owner(folder, run, fresh);
    checkpoints::write_storage_of_run(run.path, folder, fresh);
  } else if (checkpoints::claim_of_run(run.path) != owner.claim) {  // the process ended between the two files
    checkpoints::write_storage_of_run(run.path, folder, owner.claim);
  }
  return "";
}

fs::path other_owner_of_checkpoints(const RunFolder& run) {
  const fs::path folder = find_checkpoint_folder(run);
  if (folder == run.path / "checkpoints") return {};
  const Owner owner = read_owner(folder);
  return claim_on(folder, owner, run) == Claim::kOfAnother ? owner.run : fs::path();
}

fs::path run_of_checkpoint_folder(const fs::path& folder) {
  std::error_code code;
  if (!fs::is_regular_file(folder / kOwnerFile, code)) return {};
  return text_at(parse_if_valid(read_file(folder / kOwnerFile, kLargestOwnerFile)).value_or(Json()), "run");
}

fs::path find_checkpoint_folder(const RunFolder& run) {
  fs::path folder = checkpoints::storage_of_run(run.path);
  std::error_code code;
  // The run has written this file before it wrote down the folder.
  if (folder == run.path / "checkpoints" || fs::exists(folder / kOwnerFile, code)) return folder;
  std::string text = "the checkpoints of the run " + run.path.string() + " are in " + folder.string() +
                     ", which is not there (no " + kOwnerFile + "): is its disk mounted?";
  if (const auto batch = read_state(run).last_saved) text += " The last one was of batch " + std::to_string(*batch);
  throw ConfigError(text, "mount it, or name the folder's new place in " +
                              (run.path / "checkpoints" / "storage.json").string() +
                              "; to begin anew, launch the experiment as a new run");
}

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPieceBytes = 256u << 10;

bool holds(const fs::path& file, const std::string& text) {
  std::error_code code;
  return fs::is_regular_file(file, code) && read_file(file, 4096) == text;
}

fs::path token_file(const RunFolder& folder) {
  return folder.launch() / "token";
}

// True for a file itself, not for a link to a file.
bool is_plain_file(const fs::path& path) {
  std::error_code code;
  return fs::is_regular_file(fs::symlink_status(path, code));
}

// Copies the file and removes it. A rename would fail: the two may be on different file systems.
void move_file(const fs::path& from, const fs::path& to) {
  make_folder(to.parent_path());
  const UniqueFd in(::open(from.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!in || ::fstat(in.get(), &info) != 0 || !S_ISREG(info.st_mode))
    throw SystemError("cannot read " + from.string(), errno);
  const UniqueFd out(::open(to.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, info.st_mode & 0777));
  if (!out) throw SystemError("cannot write " + to.string(), errno);
  std::string piece(kPieceBytes, '\0');
  while (const ssize_t count = ::read(in.get(), piece.data(), piece.size())) {
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw SystemError("cannot read " + from.string(), errno);
    const auto bytes = static_cast<std::size_t>(count);
    if (write_all(out.get(), std::string_view(piece).substr(0, bytes)) != bytes) {
      throw SystemError("cannot write " + to.string(), errno, "free space on its file system");
    }
  }
  fs::remove(from);
}

void merge_plan(const fs::path& from, const fs::path& to) {
  Json plan = read_json(to);
  const Json theirs = read_json(from);
  for (const auto& [key, value] : theirs.items()) plan[key] = value;
  write_plan_file(to, plan);
}

void add_events(const RunFolder& from, const RunFolder& to) {
  if (!is_plain_file(from.events())) return;
  std::string lines = read_file(from.events());
  if (!lines.empty() && lines.back() != '\n') lines.erase(lines.rfind('\n') + 1);  // an incomplete last line
  if (!lines.empty()) LineAppender(to.events()).append(lines);
  fs::remove(from.events());
}

std::vector<fs::path> move_files(const RunFolder& from, const RunFolder& to) {
  std::vector<fs::path> files;
  std::vector<fs::path> left_out;
  for (const auto& entry : fs::recursive_directory_iterator(from.path)) {
    const fs::path name = entry.path().lexically_relative(from.path);
    if (is_plain_file(entry.path())) {
      files.push_back(name);
    } else if (!fs::is_directory(entry.symlink_status())) {
      left_out.push_back(name);
    }
  }
  for (const fs::path& file : files) move_file(from.path / file, to.path / file);
  return left_out;
}

}  // namespace

void mark_folder(const RunFolder& folder, const std::string& token) {
  make_folder(folder.launch());
  write_file_atomic(token_file(folder), token);
}

bool is_folder_of(const RunFolder& folder, const std::string& token) {
  return holds(token_file(folder), token);
}

void make_host_folder(const RunFolder& folder, const std::string& token, const std::string& plan,
                      const std::string& experiment) {
  std::error_code code;
  const bool earlier = holds(folder.path / kHostFolderMark, token);
  if (!earlier && fs::exists(folder.path, code) && !fs::is_empty(folder.path, code)) {
    throw ConfigError("the run's folder " + folder.path.string() + " is not shared with host " +
                          host::host_identity().name + ", where there is another folder of that name",
                      "give a folder that all hosts share, or that is new on all of them, with --run-dir");
  }
  if (earlier) fs::remove_all(folder.path, code);
  make_folder(folder.path);
  write_file_atomic(folder.path / kHostFolderMark, token);
  write_file_atomic(folder.plan(), plan);
  const Json json = Json::parse(plan, nullptr, false);
  write_file_atomic(folder.experiment(), experiment, private_mode_of(json));
  if (json.is_object() && json.contains("checkpoint_folder"))
    checkpoints::write_storage_of_run(folder.path, json["checkpoint_folder"].get<std::string>());
  make_folder(folder.logs());
  make_folder(folder.profile());
}

std::vector<fs::path> merge_folder(const RunFolder& from, const RunFolder& to) {
  try {
    add_events(from, to);
    // Only rank 0 writes metrics and changes the plan.
    if (is_plain_file(from.metrics()) && is_plain_file(from.plan())) merge_plan(from.plan(), to.plan());
    fs::remove(from.plan());
    fs::remove(from.experiment());
    return move_files(from, to);
  } catch (const fs::filesystem_error& error) {
    const fs::path& where = error.path2().empty() ? error.path1() : error.path2();
    throw SystemError("cannot write " + where.string(), error.code().value());
  }
}

}  // namespace dtrain::rank
