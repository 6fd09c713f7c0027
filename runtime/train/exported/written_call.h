// Functions of torch.nn.functional that are told the mode: whether a line of Python calls one for training in both
// modes.
#pragma once

#include <string>

namespace dtrain::exported {

// True for F.dropout(x, 0.2), F.dropout(x, 0.2, training=True), F.batch_norm(x, mean, var, training=True) and
// F.scaled_dot_product_attention(q, k, v, dropout_p=0.1). False for F.dropout(x, 0.2, self.training), and where the
// line has no such call, or not the whole of it, or calls that differ.
bool is_on_in_both_modes(const std::string& line);

}  // namespace dtrain::exported
