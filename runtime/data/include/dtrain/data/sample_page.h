// A page (HTML, one file, nothing is loaded from elsewhere) that shows what a model sees: pictures as they are stored,
// and after their transforms.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/data/sample.h"
#include "dtrain/data/transforms.h"

namespace dtrain::data {

struct SamplePageOptions {
  std::string title;
  std::int64_t samples = 16;           // the first ones
  std::int64_t epochs = 4;             // each sample as the transforms of these epochs make it
  std::uint64_t seed = 0;              // of the experiment
  std::vector<std::string> classes{};  // names, where they are known
};

// DataError as the source's.
std::string sample_page(const std::shared_ptr<const SampleSource>& source, const std::vector<Transform>& transforms,
                        const PictureOptions& options, const SamplePageOptions& page);

}  // namespace dtrain::data
