/* global SwaggerUIBundle */
// The viewer of the OpenAPI document. A file of its own: the page's policy allows no script in the page.
SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  docExpansion: "none",
  // Nothing is asked of anybody else, and no token is kept.
  validatorUrl: null,
  persistAuthorization: false,
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
});
