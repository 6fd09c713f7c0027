// The files of assets/ and Chart.js, as they were when the library was built (cmake/Embed.cmake).
#pragma once

#include <string_view>

namespace dtrain::analysis::report {

extern const std::string_view kStyle;         // report.css
extern const std::string_view kScript;        // our scripts, in the order of CMakeLists.txt
extern const std::string_view kChartJs;       // Debian's chart.min.js
extern const std::string_view kChartJsTerms;  // its licence

}  // namespace dtrain::analysis::report
