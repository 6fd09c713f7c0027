#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dtrain/base/crc32c.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/checkpoint/checkpoint.h"
#include "storage.h"

namespace dtrain::checkpoints {
namespace {

constexpr int kReaders = 4;

struct OpenedFile {
  const ManifestFile* about = nullptr;
  UniqueFd fd;
};

struct Piece {
  const OpenedFile* file;
  std::size_t number;
  std::uint64_t offset() const { return static_cast<std::uint64_t>(number) * kPieceBytes; }
  std::size_t bytes() const { return std::min<std::uint64_t>(kPieceBytes, file->about->bytes - offset()); }
};

std::string place(const Piece& piece, std::uint64_t into) {
  return piece.file->about->name + " at byte " + std::to_string(piece.offset() + into);
}

// Returns the damage of the piece; empty: none. `buffer` has room for a piece.
std::string check_piece(const Piece& piece, std::vector<std::byte>& buffer) {
  std::size_t have = 0;
  while (have < piece.bytes()) {
    const auto at = static_cast<off_t>(piece.offset() + have);
    const ssize_t count =
        TEMP_FAILURE_RETRY(::pread(piece.file->fd.get(), buffer.data() + have, piece.bytes() - have, at));
    if (count < 0) return place(piece, have) + " cannot be read: " + std::generic_category().message(errno);
    if (count == 0) return place(piece, have) + " ends; it has " + std::to_string(piece.file->about->bytes) + " bytes";
    have += static_cast<std::size_t>(count);
  }
  const std::uint32_t stored = piece.file->about->checksums[piece.number];
  const std::uint32_t found = crc32c(std::span(buffer).first(have));
  if (found == stored) return {};
  return place(piece, 0) + " is damaged: the checksum of " + std::to_string(have) + " bytes is " +
         checksum_text(found) + " instead of " + checksum_text(stored);
}

// Opens the file. Returns the damage, such as another size; empty: none.
std::string open_file(const std::filesystem::path& folder, const ManifestFile& about, OpenedFile& file) {
  file.about = &about;
  file.fd = UniqueFd(::open((folder / about.name).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // it may be a pipe
  struct stat info {};
  return size_problem(about, file.fd && ::fstat(file.fd.get(), &info) == 0, info);
}

}  // namespace

std::string checksum_of_file(const std::filesystem::path& file) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw SystemError("cannot open " + file.string(), errno);
  std::vector<std::byte> buffer(kPieceBytes);
  std::uint32_t checksum = 0;
  while (true) {
    const ssize_t count = TEMP_FAILURE_RETRY(::read(fd.get(), buffer.data(), buffer.size()));
    if (count < 0) throw SystemError("cannot read " + file.string(), errno);
    if (count == 0) return checksum_text(checksum);
    checksum = crc32c(std::span(buffer).first(static_cast<std::size_t>(count)), checksum);
  }
}

std::vector<std::string> verify(const std::filesystem::path& checkpoint, const Progress& on_progress) {
  Manifest manifest;
  try {
    manifest = read_manifest(checkpoint);
  } catch (const Error& error) {
    return {error.what()};
  }
  std::vector<std::string> problems;
  std::vector<OpenedFile> files(manifest.files.size());
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (std::string problem = open_file(checkpoint, manifest.files[i], files[i]); !problem.empty()) {
      problems.push_back(std::move(problem));
      continue;
    }
    for (std::size_t k = 0; k < manifest.files[i].checksums.size(); ++k) pieces.push_back({&files[i], k});
  }
  std::int64_t total = 0;
  for (const Piece& piece : pieces) total += static_cast<std::int64_t>(piece.bytes());

  std::mutex mutex;
  std::map<std::size_t, std::string> damaged;  // by piece, which gives the files' order
  const auto check = [&](std::size_t index) {
    thread_local std::vector<std::byte> buffer;
    buffer.resize(kPieceBytes);
    if (std::string problem = check_piece(pieces[index], buffer); !problem.empty()) {
      const std::lock_guard lock(mutex);
      damaged[index] = std::move(problem);
    }
  };
  const auto report = [&](std::size_t done) {
    on_progress(std::min(total, static_cast<std::int64_t>(done * kPieceBytes)), total);
  };
  for_each_piece(pieces.size(), kReaders, check, on_progress ? report : std::function<void(std::size_t)>());
  for (auto& [index, problem] : damaged) problems.push_back(std::move(problem));
  return problems;
}

}  // namespace dtrain::checkpoints
