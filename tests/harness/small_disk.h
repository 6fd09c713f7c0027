// A real disk that becomes full: a small tmpfs, which only root can mount.
#pragma once

#include <sys/mount.h>

#include <filesystem>
#include <string>

namespace dtrain {

class SmallDisk {
 public:
  // At the folder `at`, which is made. `size` as mount takes it: "256k".
  SmallDisk(const std::filesystem::path& at, const std::string& size) : at_(at) {
    std::filesystem::create_directories(at);
    mounted_ = ::mount("dtrain-test", at.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(at_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  explicit operator bool() const { return mounted_; }  // whether it could be mounted

 private:
  std::filesystem::path at_;
  bool mounted_ = false;
};

}  // namespace dtrain
