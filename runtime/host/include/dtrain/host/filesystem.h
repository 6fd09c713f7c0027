// Kinds of file systems. Any thread may call.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace dtrain::host {

// Returns the kind of network file system that holds `path` ("nfs", "fuse.sshfs"); empty: it is local. `path` must
// exist. On a network file system, file locks and shared file mappings do not work between hosts, or not reliably.
// SystemError if the kernel does not report it.
std::optional<std::string> network_filesystem(const std::filesystem::path& path);

// Returns the kind for values of the kernel: the type from statfs and, for FUSE, the name from mountinfo.
std::optional<std::string> network_filesystem(long type, std::string_view name);

// Returns the type of the file system with this device number ("8:1") in the text of a mountinfo file; empty: none.
std::string mounted_type(std::string_view mountinfo, std::string_view device);

}  // namespace dtrain::host
