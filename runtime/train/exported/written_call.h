// Finds calls of torch.nn.functional in a line of Python that train in both modes.
#pragma once

#include <string>

namespace dtrain::exported {

// True for F.dropout(x, 0.2), F.dropout(x, 0.2, training=True), F.batch_norm(x, mean, var, training=True) and
// F.scaled_dot_product_attention(q, k, v, dropout_p=0.1). False for F.dropout(x, 0.2, self.training), and if the line
// has no such call, only a part of one, or calls with different modes.
bool is_on_in_both_modes(const std::string& line);

}  // namespace dtrain::exported
