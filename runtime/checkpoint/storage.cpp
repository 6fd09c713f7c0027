#include "storage.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <fstream>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "dtrain/base/crc32c.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/base/untrusted.h"
#include "dtrain/checkpoint/saver.h"

namespace dtrain::checkpoints {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOwnFolder = "checkpoints";
constexpr const char* kStorageFile = "storage.json";
constexpr std::size_t kLargestStorageFile = 64 << 10;

void sync_file(const fs::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) throw SystemError("cannot synchronise " + path.string(), errno);
}

}  // namespace

void add_checksums(const fs::path& checkpoint) {
  Manifest manifest = parse_manifest(read_file(checkpoint / kManifestFile));
  if (manifest.has_checksums) return;
  std::vector<char> piece(kPieceBytes);
  for (ManifestFile& file : manifest.files) {
    std::ifstream read(checkpoint / file.name, std::ios::binary);
    for (std::uint64_t at = 0; at < file.bytes; at += kPieceBytes) {
      const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(kPieceBytes, file.bytes - at));
      if (!read.read(piece.data(), static_cast<std::streamsize>(bytes))) {
        throw SystemError("cannot read " + (checkpoint / file.name).string(), errno);
      }
      file.checksums.push_back(crc32c(std::as_bytes(std::span(piece).first(bytes))));
    }
  }
  manifest.has_checksums = true;
  write_file_atomic(checkpoint / kManifestFile, to_text(manifest));
}

std::string folder_name(std::string_view prefix, std::int64_t step) {
  return std::string(prefix) + std::to_string(step);
}

std::optional<std::int64_t> step_of(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  const auto step = to_number<std::int64_t>(name.substr(prefix.size()));
  return step && *step >= 0 && folder_name(prefix, *step) == name ? step : std::nullopt;  // no leading zeros
}

std::optional<std::int64_t> step_of_folder(std::string_view name) {
  const auto step = step_of(name, kStepPrefix);
  return step ? step : step_of(name, kReplacedPrefix);
}

std::string size_problem(const ManifestFile& file, bool found, const struct stat& info) {
  if (!found) return file.name + " cannot be read: " + std::generic_category().message(errno);
  if (!S_ISREG(info.st_mode)) return file.name + " is not a file";
  if (static_cast<std::uint64_t>(info.st_size) == file.bytes) return {};
  return file.name + " has " + std::to_string(info.st_size) + " bytes instead of " + std::to_string(file.bytes);
}

fs::path storage_of_run(const fs::path& run_folder) {
  fs::path own = run_folder / kOwnFolder;
  const fs::path file = own / kStorageFile;
  std::error_code code;
  if (!fs::exists(file, code)) return own;
  const auto storage = value_at<std::string>(read_json(file), "storage");
  if (storage) return run_folder / *storage;
  throw DataError(file.string() + " does not say in \"storage\", with a text, where the run's checkpoints lie");
}

void write_storage_of_run(const fs::path& run_folder, const fs::path& storage, const std::string& claim) {
  Json json = {{"storage", storage.string()}};
  if (!claim.empty()) json["claim"] = claim;
  make_folder(run_folder / kOwnFolder);
  write_file_atomic(run_folder / kOwnFolder / kStorageFile, to_line(json) + "\n");
}

std::string claim_of_run(const fs::path& run_folder) {
  const fs::path file = run_folder / kOwnFolder / kStorageFile;
  std::error_code code;
  if (!fs::exists(file, code)) return "";
  return text_at(parse_if_valid(read_file(file, kLargestStorageFile)).value_or(Json()), "claim");
}

bool adopt_checkpoint(const fs::path& checkpoint, const fs::path& storage) {
  const auto step = step_of_folder(checkpoint.filename().string());
  if (!step) throw SystemError(checkpoint.string() + " has not the name of a checkpoint", EINVAL);
  const fs::path partial = storage / folder_name(kPartialPrefix, *step);
  delete_tree(partial);
  make_folder(partial);
  std::error_code code;
  for (fs::directory_iterator file(checkpoint, code); !code && file != fs::directory_iterator(); file.increment(code)) {
    const fs::path copy = partial / file->path().filename();
    fs::create_hard_link(file->path(), copy, code);
    if (code && code != std::errc::no_such_file_or_directory) {
      fs::copy_file(file->path(), copy, code);
      if (!code) sync_file(copy);
    }
    if (code) break;
  }
  if (code == std::errc::no_such_file_or_directory) {  // the checkpoint's run has deleted it
    delete_tree(partial);
    return false;
  }
  if (code) throw SystemError("cannot put " + checkpoint.string() + " into " + storage.string(), code.value());
  sync_folder(partial);
  fs::rename(partial, storage / step_folder(*step), code);
  if (code) throw SystemError("cannot rename " + partial.string(), code.value());
  sync_folder(storage);
  return true;
}

void sync_folder(const fs::path& folder) {
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) throw SystemError("cannot open the folder " + folder.string(), errno);
  sync_folder(fd.get(), folder);
}

void sync_folder(int fd, const fs::path& folder) {
  // EINVAL: the file system does not synchronise folders.
  if (::fsync(fd) != 0 && errno != EINVAL) throw SystemError("cannot synchronise the folder " + folder.string(), errno);
}

void delete_tree(const fs::path& path) {
  std::error_code code;
  fs::remove_all(path, code);
  if (code) throw SystemError("cannot delete " + path.string(), code.value());
}

void remove_checkpoints(const std::vector<fs::path>& checkpoints) {
  if (checkpoints.empty()) return;
  std::vector<fs::path> doomed;
  for (const fs::path& path : checkpoints) {
    const auto step = step_of_folder(path.filename().string());
    if (!step) throw SystemError("cannot delete " + path.string() + ": its name is not that of a checkpoint", EINVAL);
    doomed.push_back(path.parent_path() / folder_name(kDeletedPrefix, *step));
    delete_tree(doomed.back());  // the rest of an interrupted deletion
    if (::rename(path.c_str(), doomed.back().c_str()) != 0) throw SystemError("cannot delete " + path.string(), errno);
  }
  for (const fs::path& path : checkpoints) sync_folder(path.parent_path());
  for (const fs::path& path : doomed) delete_tree(path);
}

StorageLock::StorageLock(const fs::path& storage) : path_(storage / kLockFile) {}

bool StorageLock::try_take() {
  struct stat there {};
  if (fd_) {  // the folder may have been deleted and made again
    struct stat held {};
    const bool same = ::stat(path_.c_str(), &there) == 0 && ::fstat(fd_.get(), &held) == 0 &&
                      there.st_dev == held.st_dev && there.st_ino == held.st_ino;
    if (same) return true;
    fd_.reset();
  }
  UniqueFd fd(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!fd) throw SystemError("cannot open " + path_.string(), errno);
  // Another error is that of a file system without locks.
  if (TEMP_FAILURE_RETRY(::flock(fd.get(), LOCK_EX | LOCK_NB)) != 0 && errno == EWOULDBLOCK) return false;
  fd_ = std::move(fd);
  return true;
}

bool wait_for_savers(const fs::path& storage, std::chrono::milliseconds patience) {
  constexpr std::chrono::milliseconds kPeriod{5};
  const auto deadline = std::chrono::steady_clock::now() + patience;
  const UniqueFd fd(::open((storage / kLockFile).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) return true;
  while (::flock(fd.get(), LOCK_SH | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return true;  // a file system without locks
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kPeriod);
  }
  return true;
}

void for_each_piece(std::size_t count, int threads, const std::function<void(std::size_t)>& work,
                    const std::function<void(std::size_t)>& on_progress, const std::function<void()>& on_start) {
  constexpr std::chrono::milliseconds kProgressPeriod{100};
  const std::size_t workers = std::min<std::size_t>(static_cast<std::size_t>(threads), count);
  if (workers <= 1 && !on_progress && !on_start) {
    for (std::size_t i = 0; i < count; ++i) work(i);
    return;
  }
  std::atomic<std::size_t> next{0};
  std::atomic<std::size_t> done{0};
  std::mutex mutex;
  std::condition_variable ended;
  std::size_t running = workers;
  std::exception_ptr failure;

  const auto run = [&] {
    try {
      if (on_start) on_start();
      for (std::size_t i = next++; i < count; i = next++) {
        work(i);
        ++done;
      }
    } catch (...) {
      next = count;  // the other threads take no more pieces
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
    const std::lock_guard lock(mutex);
    --running;
    ended.notify_one();
  };
  {
    std::vector<std::jthread> pool;
    for (std::size_t i = 0; i < workers; ++i) pool.emplace_back(run);
    std::unique_lock lock(mutex);
    while (!ended.wait_for(lock, kProgressPeriod, [&] { return running == 0; })) {
      if (!on_progress) continue;
      lock.unlock();
      on_progress(done);
      lock.lock();
    }
  }
  if (failure) std::rethrow_exception(failure);
  if (on_progress) on_progress(done);
}

}  // namespace dtrain::checkpoints
