#include "dtrain/host/filesystem.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include "dtrain/base/error.h"
#include "dtrain/host/proc_file.h"

namespace dtrain::host {
namespace {

struct NetworkKind {
  std::uint32_t type;
  const char* name;
};

// The numbers are from statfs(2), linux/magic.h, and the documents of file systems outside Linux. 9p is left out,
// because containers and virtual machines use it for folders of their own host.
constexpr NetworkKind kNetwork[] = {
    {0x6969, "nfs"},       {0x517B, "smbfs"},      {0xFE534D42, "smb2"}, {0xFF534D42, "cifs"},
    {0x5346414F, "afs"},   {0x6B414653, "afs"},    {0x73757245, "coda"}, {0x564C, "ncp"},
    {0x00C36400, "ceph"},  {0x0BD00BD0, "lustre"}, {0x47504653, "gpfs"}, {0x19830326, "beegfs"},
    {0xAAD7AAEA, "panfs"}, {0x7461636F, "ocfs2"},  {0x01161970, "gfs2"}, {0x20030528, "orangefs"}};
constexpr std::uint32_t kFuse = 0x65735546;
// Other FUSE file systems are local: containers without root use fuse-overlayfs.
constexpr std::array<std::string_view, 11> kNetworkFuse{"sshfs",   "glusterfs", "ceph-fuse", "s3fs",
                                                        "gcsfuse", "rclone",    "davfs",     "juicefs",
                                                        "goofys",  "seaweedfs", "curlftpfs"};

}  // namespace

std::optional<std::string> network_filesystem(long type, std::string_view name) {
  const auto number = static_cast<std::uint32_t>(type);
  const auto* const known = std::ranges::find(kNetwork, number, &NetworkKind::type);
  if (known != std::end(kNetwork)) return known->name;
  if (number != kFuse || !name.starts_with("fuse.")) return std::nullopt;
  const bool network = std::ranges::find(kNetworkFuse, name.substr(5)) != kNetworkFuse.end();
  return network ? std::optional<std::string>(name) : std::nullopt;
}

std::string mounted_type(std::string_view mountinfo, std::string_view device) {
  // "36 35 98:0 /root /mount/point options [optional fields] - type source options"
  Fields lines(mountinfo, '\n');
  while (const auto line = lines.next()) {
    Fields fields(*line, ' ');
    fields.skip(2);
    if (fields.next() != device) continue;
    while (const auto field = fields.next()) {
      if (*field == "-") return std::string(fields.next().value_or(""));
    }
  }
  return {};
}

std::optional<std::string> network_filesystem(const std::filesystem::path& path) {
  struct statfs kind {};
  struct stat info {};
  if (::statfs(path.c_str(), &kind) != 0 || ::stat(path.c_str(), &info) != 0) {
    throw SystemError("cannot find out what kind of file system holds " + path.string(), errno);
  }
  const std::string device = std::to_string(major(info.st_dev)) + ":" + std::to_string(minor(info.st_dev));
  return network_filesystem(static_cast<long>(kind.f_type),
                            mounted_type(read_proc_file("/proc/self/mountinfo").value_or(""), device));
}

}  // namespace dtrain::host
