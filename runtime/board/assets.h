// The files of the page, which the build embeds.
#pragma once

#include <string_view>

namespace dtrain::board {

extern const std::string_view kPage, kStyle, kScript, kChartJs, kChartJsTerms;

}  // namespace dtrain::board
