#include "saver/open_folder.h"

#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

#include "dtrain/base/crc32c.h"
#include "dtrain/base/error.h"
#include "dtrain/base/file.h"
#include "dtrain/base/units.h"

namespace dtrain::checkpoints {

namespace {

std::string remedy_for(int code) {
  if (code != ENOSPC && code != EDQUOT) return "";
  return "free space there, keep fewer checkpoints, or name another folder as checkpoint_storage";
}

}  // namespace

void fail_to_write(const std::filesystem::path& path, std::uint64_t offset, int code) {
  throw SystemError("cannot write " + path.string() + " at byte " + std::to_string(offset), code, remedy_for(code));
}

void fail_to_reserve(const std::filesystem::path& path, std::uint64_t bytes, int code) {
  throw SystemError("cannot reserve " + format_bytes(static_cast<double>(bytes)) + " for " + path.string(), code,
                    remedy_for(code));
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

}  // namespace dtrain::checkpoints
