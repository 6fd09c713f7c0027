// See context.h: no declaration from this header is needed.
#pragma once
