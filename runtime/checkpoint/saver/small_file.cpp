#include "saver/small_file.h"

#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

#include "crc32c.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"

namespace dtrain::checkpoint {

void fail_to_write(const std::filesystem::path& path, std::uint64_t offset, int code) {
  const bool full = code == ENOSPC || code == EDQUOT;
  throw SystemError(
      "cannot write " + path.string() + " at byte " + std::to_string(offset), code,
      full ? "free space there, keep fewer checkpoints, or name another folder as checkpoint_storage" : "");
}

ManifestFile write_small_file(const OpenFolder& folder, const std::string& name, std::string_view text) {
  const auto path = folder.path / name;
  const UniqueFd fd(::openat(folder.fd.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd) fail_to_write(path, 0, errno);
  if (const auto written = write_all(fd.get(), text); written < text.size()) fail_to_write(path, written, errno);
  if (::fsync(fd.get()) != 0) fail_to_write(path, 0, errno);
  ManifestFile file{name, text.size(), {}};
  for (std::size_t at = 0; at < text.size(); at += kPieceBytes) {
    file.checksums.push_back(crc32c(text.substr(at, kPieceBytes)));
  }
  return file;
}

}  // namespace dtrain::checkpoint
