import { createClient } from "@connectrpc/connect";
import { KernelService } from "../gen/retinue/manager/v1/kernel_service_pb";
import { transport } from "./transport";

export const kernels = createClient(KernelService, transport);
