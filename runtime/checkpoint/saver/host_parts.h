// How the savers of several hosts complete one checkpoint: host 0 makes the folder with a beginning, .begin.json; every
// other host writes its files into it, and last .host-N.json, which lists them or says what failed; host 0 collects
// these. A token that host 0 draws for each save keeps parts of earlier tries apart.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dtrain/checkpoint/manifest.h"
#include "saver/open_folder.h"

namespace dtrain::checkpoints {

// Host 0: writes the beginning; returns the token.
std::string write_beginning(const OpenFolder& folder, const About& about);

// Another host: the folder of this very checkpoint once host 0 has begun it, and its token; empty: not yet.
// SystemError.
struct Beginning {
  OpenFolder folder;
  std::string token;
};
std::optional<Beginning> find_beginning(const std::filesystem::path& partial, const About& about);

// Another host: it has written its files, or `error` has kept it from that.
void write_host_part(const OpenFolder& folder, const std::string& token, int host,
                     const std::vector<ManifestFile>& files, const std::string& error);

// Host 0: the files of that host, once all are there; empty: not yet. An Error with what has failed on that host.
std::optional<std::vector<ManifestFile>> find_host_part(const OpenFolder& folder, const std::string& token, int host);

// Host 0: deletes what these functions have written into the folder.
void remove_host_parts(const OpenFolder& folder, int hosts);

}  // namespace dtrain::checkpoints
