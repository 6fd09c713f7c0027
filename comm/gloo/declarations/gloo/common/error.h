// See context.h: nothing of it is needed.
#pragma once
