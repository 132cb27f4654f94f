import { createClient } from "@connectrpc/connect";
import { EndpointService } from "../gen/retinue/manager/v1/endpoint_service_pb";
import { transport } from "./transport";

export const endpoints = createClient(EndpointService, transport);
