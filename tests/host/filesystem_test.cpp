#include "dtrain/host/filesystem.h"

#include <gtest/gtest.h>

#include "dtrain/base/error.h"

namespace dtrain::host {
namespace {

// As /proc/self/mountinfo has them: a disk, an NFS folder, an sshfs with optional fields.
constexpr const char* kMounts =
    "25 30 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
    "90 25 0:52 / /home rw shared:48 - nfs4 server:/home rw,vers=4.2\n"
    "91 25 0:60 / /mnt/remote rw,nosuid - fuse.sshfs me@host: rw,user_id=0\n";

TEST(NetworkFilesystem, IsKnownByItsType) {
  EXPECT_EQ(network_filesystem(0x6969, ""), "nfs");
  EXPECT_EQ(network_filesystem(static_cast<long>(0xFF534D42), ""), "cifs");
  EXPECT_EQ(network_filesystem(static_cast<int>(0xFF534D42), ""), "cifs") << "f_type is signed on some machines";
  EXPECT_FALSE(network_filesystem(0xEF53, "ext4"));
  EXPECT_FALSE(network_filesystem(0x01021994, "tmpfs"));
}

TEST(NetworkFilesystem, OfFuseByItsName) {
  constexpr long kFuse = 0x65735546;
  EXPECT_EQ(network_filesystem(kFuse, mounted_type(kMounts, "0:60")), "fuse.sshfs");
  EXPECT_FALSE(network_filesystem(kFuse, "fuse.fuse-overlayfs"));
  EXPECT_FALSE(network_filesystem(kFuse, "fuseblk"));
}

TEST(MountedType, IsFoundByTheDevice) {
  EXPECT_EQ(mounted_type(kMounts, "8:1"), "ext4");
  EXPECT_EQ(mounted_type(kMounts, "0:52"), "nfs4");
  EXPECT_EQ(mounted_type(kMounts, "9:9"), "");
  EXPECT_EQ(mounted_type("torn 1 8:1", "8:1"), "");
}

TEST(NetworkFilesystem, OfThisMachine) {
  EXPECT_FALSE(network_filesystem("/proc"));
  EXPECT_THROW(network_filesystem("/no/such/path"), SystemError);
}

}  // namespace
}  // namespace dtrain::host
