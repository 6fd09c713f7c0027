// Pictures as PNG files (ISO/IEC 15948): 8 bits a channel, rows without filters, compressed with little effort.
#pragma once

#include <string>

#include "dtrain/analysis/event_file.h"

namespace dtrain::analysis {

// The whole file. Error for a picture without pixels, with 2 or more than 4 channels, or whose number of pixels is not
// that of its size.
std::string png_of(const Picture& picture);

}  // namespace dtrain::analysis
