// Copies: host to card, card to host, card to card, and on one card.
#pragma once
#include <ATen/core/Tensor.h>

namespace step_oracle::aten {

// Copies src into dst, one shape, both on one card. Equal types are moved bit by bit; others are cast as the card does.
void copy_on_card(const at::Tensor& src, const at::Tensor& dst);

}  // namespace step_oracle::aten
